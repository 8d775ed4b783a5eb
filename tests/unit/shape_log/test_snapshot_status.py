"""The status of the snapshots' job: its document, and what it shows while attempts come and go."""

import json
from random import Random

import pytest
from msgspec.structs import replace

from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.status.snapshot_status import AttemptStatus, SnapshotSource, TableStatus
from tests.support.random_status import random_failure


def test_what_is_left_and_taken_of_each_table() -> None:
    """A table of which everything is taken stays, with its figures; one that has nothing to take any more does not."""
    now = [1_000]
    live = LiveSnapshotStatus(lambda: now[0])
    live.note_due({("s", "public.a"): 3, ("s", "public.b"): 1}, waiting=2)
    live.note_attempt(AttemptStatus("s", "public.a", 3, 1_000, 10))
    now[0] = 2_000
    status = live.read()
    assert (status.at_ms, status.started_at_ms, status.waiting_shapes) == (2_000, 1_000, 2)
    assert status.attempt is not None
    live.note_attempt(None)
    live.note_taken(("s", "public.a"), 2, 500)
    assert live.read().tables == (TableStatus("s", "public.a", 1, 2, 500), TableStatus("s", "public.b", 1))
    assert live.read().sources == (SnapshotSource("s", 2, 2, 500),)
    live.note_server_error(OSError("gone"))
    assert live.read().server_error == "gone"
    live.note_due({}, waiting=0)
    assert live.read() == replace(
        status,
        attempt=None,
        waiting_shapes=0,
        sources=(SnapshotSource("s", 0, 2, 500),),
        tables=(TableStatus("s", "public.a", 0, 2, 500),),
        progress_at_ms=2_000,
    )


def test_document_of_a_hundred_thousand_shapes_is_small() -> None:
    """Each may have a table of its own, fail, and with a long reason. Peers read at most 1 MiB."""
    rng, live = Random(1), LiveSnapshotStatus()  # noqa: S311  repeatable
    live.note_due({("s", f"public.t{n}"): n for n in range(100_000)}, waiting=5)
    live.note_failures([replace(random_failure(rng, f"s{n}"), reason="x" * 9_000) for n in range(100_000)])
    status = live.read()
    assert (status.failed_shapes, len(status.failures), status.failures[0].shape_id) == (100_000, 100, "s0")
    assert status.sources == (SnapshotSource("s", sum(range(100_000))),)
    assert [table.shapes_left for table in status.tables] == list(range(99_999, 99_899, -1))
    assert len(json.dumps(status.to_json())) < 200_000


def test_tables_that_come_and_go_are_forgotten_but_for_their_sums() -> None:
    live = LiveSnapshotStatus()
    for first in range(0, 20_000, 500):
        keys = [("s", f"public.t{number}") for number in range(first, first + 500)]
        live.note_due(dict.fromkeys(keys, 2), waiting=0)
        for key in keys[::2]:
            live.note_taken(key, 1, 10)
    live.note_due({}, waiting=0)
    assert len(live._tables) == 1_000
    assert live.read().sources == (SnapshotSource("s", 0, 10_000, 100_000),)


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_a_source_are_those_of_its_tables(seed: int) -> None:
    """Whatever is found out and taken, in any order; kept up to date without going through the tables again."""
    rng, live = Random(seed), LiveSnapshotStatus()  # noqa: S311  repeatable
    keys = [(source, table) for source in "ab" for table in "xyz"]
    for _ in range(30):
        if rng.random() < 0.3:
            live.note_due({key: rng.randrange(5) for key in rng.sample(keys, 3)}, waiting=0)
        else:
            live.note_taken(rng.choice(keys), rng.randrange(3), rng.randrange(9))
        status = live.read()
        for source in status.sources:
            tables = [table for table in status.tables if table.source == source.source]
            assert source.shapes_left == sum(table.shapes_left for table in tables)
            assert source.shapes_taken == sum(table.shapes_taken for table in tables)
            assert source.rows == sum(table.rows for table in tables)
        assert {table.source for table in status.tables} == {source.source for source in status.sources}


def test_stalled_is_what_makes_no_progress_while_it_should() -> None:
    """An attempt that reads no rows, or a look that hangs; not a pause until the next look."""
    now = [0]
    live = LiveSnapshotStatus(lambda: now[0])

    def stalled_ms_at(at_ms: int) -> int:
        now[0] = at_ms
        return live.read().stalled_ms(at_ms)

    attempt = AttemptStatus("s", "public.a", 3, 0, 10)
    live.note_looking()
    assert stalled_ms_at(70_000) == 70_000
    assert live.read().not_ready_because is not None
    live.note_due({("s", "public.a"): 3}, waiting=0)
    assert live.read().not_ready_because is None
    now[0] = 80_000
    live.note_attempt(replace(attempt, rows=1))
    now[0] = 90_000
    live.note_attempt(replace(attempt, rows=1, rows_per_s=0))
    assert stalled_ms_at(90_000) == 10_000
    live.note_attempt(replace(attempt, rows=2))
    assert stalled_ms_at(90_000) == 0
    live.note_attempt(None)
    live.note_pause(3_600_000)
    assert [stalled_ms_at(at_ms) for at_ms in (3_600_000, 3_600_500)] == [0, 500]
    live.note_looking()
    live.note_server_error(OSError("gone"))
    assert live.read().not_ready_because == "it does not know which shapes need a snapshot: gone"
