"""The status of the snapshots' job: its document, and what it shows while attempts come and go."""

import json
from dataclasses import replace
from random import Random

import pytest

from flushtracker.jobs.snapshot.live_status import LiveSnapshotStatus
from flushtracker.status.snapshot_status import AttemptStatus, ShapeFailure, SnapshotStatus, TableStatus
from tests.support.random_status import NAMES


def failure(rng: Random, shape_id: str) -> ShapeFailure:
    return ShapeFailure("s", shape_id, rng.choice(NAMES), rng.choice(NAMES), rng.randrange(9), rng.randrange(99), 1)


@pytest.mark.parametrize("seed", range(20))
def test_document_is_read_as_it_was_written(seed: int) -> None:
    """As JSON, whatever names it has."""
    rng = Random(seed)  # noqa: S311  repeatable
    attempt = AttemptStatus("s", rng.choice(NAMES), 5, 1, 100, rng.randrange(100), 7, 3, rng.choice([None, 9]))
    status = SnapshotStatus(
        rng.randrange(10**12),
        1,
        rng.choice([None, attempt]),
        tuple(TableStatus("s", name, rng.randrange(9)) for name in rng.sample(NAMES, rng.randrange(4))),
        rng.randrange(9),
        rng.randrange(9),
        tuple(failure(rng, name) for name in rng.sample(NAMES, rng.randrange(4))),
        rng.choice([None, "unreachable"]),
    )
    document = json.loads(json.dumps(status.to_json()))
    assert (document["version"], document["program"]) == (1, "snapshot")
    assert SnapshotStatus.from_json(document) == status
    for name in document.keys() - {"version", "program"}:
        with pytest.raises(KeyError):
            SnapshotStatus.from_json({key: value for key, value in document.items() if key != name})


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
    live.note_server_error(OSError("gone"))
    assert live.read().server_error == "gone"
    live.note_due({}, waiting=0)
    assert live.read() == replace(
        status, attempt=None, waiting_shapes=0, tables=(TableStatus("s", "public.a", 0, 2, 500),)
    )


def test_document_lists_a_hundred_failures_and_counts_all() -> None:
    """Thousands of shapes may fail for one reason."""
    rng, live = Random(1), LiveSnapshotStatus()  # noqa: S311  repeatable
    live.note_failures([failure(rng, f"s{n}") for n in range(2_000)])
    status = live.read()
    assert (status.failed_shapes, len(status.failures), status.failures[0].shape_id) == (2_000, 100, "s0")
