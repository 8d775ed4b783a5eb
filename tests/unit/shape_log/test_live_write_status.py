"""What the writers' job tells of itself: of its batches, its upkeep and its shapes, at any time."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from flushtracker.config.write_config import LogConfig
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.snapshots import SnapshotsTaken
from flushtracker.shape_log.table.upkeep import UpkeepReport
from flushtracker.shape_log.write.background import ShapesThread
from flushtracker.shape_log.write.driver import written_batches
from flushtracker.shape_log.write.live_write_status import LiveWriteStatus, WrittenBatch
from flushtracker.shape_log.write.shape_counts import count_shapes, with_own_flushes
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.status.write_status import SourceShapes, WriteStatus, WrittenSource
from flushtracker.wal.log_offset import LogOffset
from tests.support.random_status import NAMES


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LiveWriteStatus:
    return LiveWriteStatus(clock_ms=clock)


def only(status: WriteStatus) -> WrittenSource:
    (source,) = status.sources
    return source


def test_a_batch_is_told_with_its_delay(clock: Clock, live: LiveWriteStatus) -> None:
    """What is durable at the start is known before the first batch; no LSN goes back, and no delay is negative."""
    live.note_written({"s": WrittenBatch(flushed_lsn=500)})
    assert only(live.read()) == WrittenSource("s", 500, 1_000_000)
    clock.now_ms += 9_000
    live.note_written({"s": WrittenBatch(30, 700, 1_006_500)})
    assert only(live.read()) == WrittenSource("s", 700, 1_009_000, 1_006_500, 2_500, 30)
    clock.now_ms += 1_000
    live.note_written({"s": WrittenBatch(5, 600, 1_010_007)})
    assert only(live.read()) == WrittenSource("s", 700, 1_010_000, 1_010_007, 0, 35)
    clock.now_ms += 1_000
    live.note_written({"s": WrittenBatch(2)})  # Rows of an open transaction: nothing is notified.
    assert only(live.read()) == WrittenSource("s", 700, 1_010_000, 1_010_007, 0, 37)


def test_last_cut_of_a_source_is_told(clock: Clock, live: LiveWriteStatus) -> None:
    """With when it was noted, from which its age follows; a source without one has none."""
    live.note_written({"s": WrittenBatch(flushed_lsn=500), "other": WrittenBatch(flushed_lsn=500)})
    live.note_cuts({"s": 400})
    clock.now_ms += 9_000
    live.note_cuts({"s": 450})
    live.note_cuts({})
    found = {source.source: (source.cut_lsn, source.cut_at_ms) for source in live.read().sources}
    assert found == {"s": (450, 1_009_000), "other": (None, None)}


@pytest.mark.parametrize("seed", range(20))
def test_rate_is_of_the_last_minute(seed: int) -> None:
    """Whatever was written before, and when; since the start, if that is less than a minute ago."""
    rng, clock = Random(seed), Clock()  # noqa: S311  repeatable
    live, written = LiveWriteStatus(clock_ms=clock), list[tuple[int, int]]()
    for _ in range(50):
        clock.now_ms += rng.randrange(1, 20_000)
        written.append((clock.now_ms, rng.randrange(1_000)))
        live.note_written({"s": WrittenBatch(written[-1][1])})
        at_ms = clock.now_ms = clock.now_ms + rng.randrange(30_000)
        rows = sum(count for each_ms, count in written if at_ms - each_ms < 60_000)
        assert live.read().rows_per_s == rows * 1_000 // min(at_ms - 1_000_000, 60_000)


def test_gaps_are_told_until_they_are_closed(live: LiveWriteStatus) -> None:
    """Ten at most, of the source that has them, with all counted."""
    live.note_written({"s": WrittenBatch(1), "t": WrittenBatch(1)})
    gaps = {("s", f"shape-{number}"): "x" * 9_000 for number in range(12)}
    live.note_gaps(gaps)
    first, second = live.read().sources
    assert (first.gap_count, [note.shape_id for note in first.gaps]) == (12, [f"shape-{n}" for n in range(10)])
    assert (second.gap_count, second.gaps) == (0, ())
    live.note_written({"s": WrittenBatch(1)})
    assert live.read().sources[0].gap_count == 12
    live.note_gaps({("t", "a"): "…"})
    assert [source.gap_count for source in live.read().sources] == [0, 1]


def test_upkeep_is_told_with_its_last_result(clock: Clock, live: LiveWriteStatus) -> None:
    """A failure since when it fails, and not only the last time; a success ends it. The sums stay."""
    assert live.read().upkeep.done_at_ms is None
    live.upkeep_started()
    assert live.read().upkeep.running_since_ms == 1_000_000
    clock.now_ms += 5
    live.upkeep_done(UpkeepReport(merges=2, rewritten_bytes=10))
    assert (live.read().upkeep.done_at_ms, live.read().upkeep.running_since_ms) == (1_000_005, None)
    for _ in range(2):
        clock.now_ms += 10_000
        live.upkeep_started()
        live.upkeep_failed(OSError("disk full"))
    failing = live.read().upkeep
    assert (failing.failing_since_ms, failing.error, failing.done_at_ms) == (1_010_005, "disk full", 1_000_005)
    assert (failing.running_since_ms, failing.merges) == (None, 2)
    live.upkeep_started()
    live.upkeep_done(UpkeepReport(merges=1))
    done = live.read().upkeep
    assert (done.failing_since_ms, done.error, done.merges, done.rewritten_bytes) == (None, None, 3, 10)


def shape_row(source: str, shape_id: str, tx_offset: int, rows: int, timestamp: str | None) -> Mapping[str, Any]:
    return {"source": source, "shape_id": shape_id, "tx_offset": tx_offset, "rows": rows, "commit_timestamp": timestamp}


def test_a_batch_is_what_its_shapes_are() -> None:
    """For each source the greatest LSN, the rows of all shapes, and the time of the commit that is last in the WAL."""
    rows = [
        shape_row("s", "a", 900, 3, "2026-01-01T00:00:01.500000Z"),
        shape_row("s", "b", 800, 2, "2026-01-01T00:00:09.000000Z"),  # The server's clock has been set back.
        shape_row("s", "c", -1, 4, None),
        shape_row("t", "a", -1, 1, None),
        shape_row("u", "a", 5, 1, "yesterday, by a producer of one's own"),
    ]
    at_ms = int(datetime(2026, 1, 1, 0, 0, 1, 500_000, timezone.utc).timestamp() * 1000)
    assert written_batches(rows) == {  # type: ignore[arg-type]  # a row is read by its names
        "s": WrittenBatch(9, 900, at_ms),
        "t": WrittenBatch(1),
        "u": WrittenBatch(1, 5),
    }


def entry(
    shape_id: str, source: str = "s", *, snapshot: bool = True, removed_at: int = 0, incarnation: int = 1
) -> ShapeEntry:
    definition = ShapeDefinition(shape_id, ("public", "t"), snapshot=snapshot, incarnation=incarnation)
    found = ShapeEntry(source, definition, 1, LogOffset(900, 0))
    return replace(found, removed_at=LogOffset(removed_at, 0)) if removed_at else found


def registry(*entries: ShapeEntry) -> Registry:
    return Registry.of(entries)


def test_shapes_are_counted_as_the_tables_have_them() -> None:
    """Live ones with and without a snapshot, and ended ones with their reasons, the last one first."""
    ended = replace(entry("x", removed_at=7), ended_because="its column was dropped")
    found = count_shapes(
        registry(entry("b"), entry("a"), entry("c", snapshot=False), ended, entry("y", removed_at=9), entry("a", "t")),
        {("s", "a"): 1, ("s", "x"): 1},
    )
    assert found.keys() == {"s", "t"}
    shapes = found["s"]
    assert (shapes.live, shapes.without_snapshot_count, shapes.without_snapshot) == (3, 1, ("b",))
    assert [(note.shape_id, note.reason) for note in shapes.ended] == [
        ("y", "its owner removed it"),
        ("x", "its column was dropped"),
    ]
    assert (found["t"].live, found["t"].without_snapshot) == (1, ("a",))


def test_shapes_whose_flush_is_not_used_are_named() -> None:
    """Their bytes and interval say nothing with ``flush: batch``; the size of a chunk does, and others are not ours."""

    def flushing(shape_id: str, **policy: int) -> ShapeEntry:
        found = entry(shape_id)
        return replace(found, definition=replace(found.definition, flush=FlushPolicy(**policy)))

    other = flushing("other", bytes=1)
    other = replace(other, definition=replace(other.definition, writer="own"))
    gone = replace(flushing("gone", bytes=1), removed_at=LogOffset(1000, 0))
    entries = [entry("a"), flushing("b", interval_ms=5), flushing("c", bytes=7), flushing("d", chunk_bytes=9)]
    assert with_own_flushes(registry(*entries, other, gone)) == ["b", "c"]


def test_document_of_a_hundred_thousand_shapes_is_small(live: LiveWriteStatus) -> None:
    """Peers read at most 1 MiB. Every shape lacks a snapshot or has ended, and half of them have a gap."""
    count = 100_000
    entries = [entry(f"shape-{number}", removed_at=number % 2 * number) for number in range(count)]
    live.note_written({"s": WrittenBatch(1)})
    live.note_shapes(count_shapes(registry(*entries), {}))
    live.note_gaps({("s", f"shape-{number}"): "y" * 1_000 for number in range(0, count, 2)})
    source = only(live.read())
    assert source.shapes is not None
    assert (source.shapes.live, source.shapes.ended_count, source.gap_count) == (count // 2, count // 2, count // 2)
    assert source.shapes.ended[0].shape_id == f"shape-{count - 1}"
    assert source.shapes.without_snapshot_count == count // 2
    assert len(json.dumps(live.read().to_json())) < 20_000


def test_sources_are_known_from_the_tables_before_their_first_batch(live: LiveWriteStatus) -> None:
    """And a source whose shapes are not in the registry table yet has none there."""
    live.note_written({"t": WrittenBatch(1)})
    assert only(live.read()).shapes is None
    live.note_shapes({"s": SourceShapes(3)})
    first, second = live.read().sources
    assert (first.source, first.shapes, second.shapes) == ("s", SourceShapes(3), SourceShapes())


class Taken:
    """The query of the log for the shapes that have a snapshot."""

    def __init__(self) -> None:
        self.incarnations: dict[tuple[str, str], int] = {}
        self.new: list[dict[tuple[str, str], int]] = [{}]
        self.looks = 0

    def update(self) -> bool:
        self.looks += 1
        if not self.new:
            return False
        self.incarnations |= self.new.pop(0)
        return True


def test_the_log_is_queried_only_while_a_shape_lacks_a_snapshot(live: LiveWriteStatus, tmp_path: Path) -> None:
    """The query reads the whole log, and folds commit as snapshots do."""
    create_shape_log(str(tmp_path / "log"))
    thread, taken = ShapesThread(LogConfig(str(tmp_path / "log"), str(tmp_path / "shapes")), live), Taken()
    thread._taken = cast("SnapshotsTaken", taken)

    def lacking() -> tuple[str, ...] | None:
        thread.run_once()
        (source,) = live.read().sources
        return None if source.shapes is None else source.shapes.without_snapshot

    live.registry = registry(entry("a"), entry("b"))
    assert (lacking(), taken.looks) == (("a", "b"), 1)
    assert (lacking(), taken.looks) == (("a", "b"), 2)
    taken.new = [{("s", "a"): 1}, {("s", "b"): 1}]
    assert (lacking(), lacking(), taken.looks) == (("b",), (), 4)
    taken.new = [{}]
    assert (lacking(), taken.looks) == ((), 4)
    live.registry = registry(entry("a"), entry("b"), entry("c"))
    assert (lacking(), taken.looks) == (("c",), 4)
    taken.new = [{("s", "c"): 1}]
    assert (lacking(), taken.looks) == ((), 5)
    live.registry = registry(entry("a"), entry("b"), entry("c", incarnation=2))
    assert (lacking(), lacking(), taken.looks) == (("c",), ("c",), 6)
    taken.new = [{("s", "c"): 2}]
    assert (lacking(), lacking(), taken.looks) == ((), (), 7)


def test_a_failure_is_told_with_its_time(clock: Clock, live: LiveWriteStatus) -> None:
    """Also a long one, and one with any character."""
    for text in (*NAMES, "x" * 9_000):
        clock.now_ms += 1
        live.note_failure(OSError(text))
        failure = live.read().failure
        assert failure is not None
        assert (failure.at_ms, failure.text) == (clock.now_ms, text if len(text) < 500 else "x" * 499 + "…")
