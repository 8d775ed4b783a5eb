"""``LiveWriteStatus``: the writers' job's status, readable from any thread without a lock.

The driver records each batch, upkeep's thread its runs, and another thread the figures of the shapes. Each thread
replaces its values as a whole and never modifies them.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from flushtracker.events.registry import Registry
from flushtracker.process.clock import now_ms
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.table.upkeep import UpkeepReport
from flushtracker.spark.live_query import LiveQuery
from flushtracker.status.document import bounded, replace
from flushtracker.status.write_status import (
    MOST_LISTED,
    Failure,
    ShapeNote,
    SourceShapes,
    UpkeepStatus,
    WriteStatus,
    WrittenSource,
)

_RATE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch's results for a source: ``rows`` are durable, and shapes notified up to ``flushed_lsn``.

    ``commit_at_ms`` is when its last transaction committed. Both are ``None`` if the batch has none.
    """

    rows: int = 0
    flushed_lsn: int | None = None
    commit_at_ms: int | None = None


class LiveWriteStatus(LiveQuery):
    """``snapshots`` is the status of the job's own snapshots, ``None`` if it takes none."""

    def __init__(self, snapshots: LiveSnapshotStatus | None = None, clock_ms: Callable[[], int] = now_ms) -> None:
        super().__init__(clock_ms)
        self.snapshots = snapshots
        self._started_at_ms = clock_ms()
        self._sources: Mapping[str, WrittenSource] = {}
        self.registry = Registry({})
        """The registry table as last read by the driver."""
        self._shapes: Mapping[str, SourceShapes] | None = None
        self._cuts: Mapping[str, tuple[int, int]] = {}
        """The last cut of each source, and when it was recorded."""
        self._recent: tuple[tuple[int, int], ...] = ()
        """The times of batches in the last minute, and their rows."""
        self._failure: Failure | None = None
        self._upkeep = UpkeepStatus()

    def note_written(self, batch: Mapping[str, WrittenBatch]) -> None:
        """Record what a batch has written and notified, or what was notified at the start."""
        at_ms, sources = self._clock_ms(), dict(self._sources)
        for name, written in batch.items():
            sources[name] = _with(sources.get(name, WrittenSource(name)), written, at_ms)
        self._sources = sources
        rows = sum(written.rows for written in batch.values())
        self._recent = (*(each for each in self._recent if each[0] > at_ms - _RATE_MS), (at_ms, rows))

    def note_gaps(self, gaps: Mapping[tuple[str, str], str]) -> None:
        notes: dict[str, list[ShapeNote]] = {}
        for (source, shape_id), gap in gaps.items():
            notes.setdefault(source, []).append(ShapeNote(shape_id, bounded(gap)))
        self._sources = {
            name: replace(source, gap_count=len(found), gaps=tuple(found[:MOST_LISTED]))
            for name, source in self._sources.items()
            for found in [notes.get(name, [])]
        }

    def note_shapes(self, shapes: Mapping[str, SourceShapes]) -> None:
        self._shapes = shapes

    def note_cuts(self, cuts: Mapping[str, int]) -> None:
        at_ms = self._clock_ms()
        self._cuts = {**self._cuts, **{source: (lsn, at_ms) for source, lsn in cuts.items()}}

    def note_failure(self, error: Exception) -> None:
        """Record a failure after which the job continues."""
        self._failure = Failure(self._clock_ms(), bounded(str(error)))

    def upkeep_started(self) -> None:
        self._upkeep = replace(self._upkeep, running_since_ms=self._clock_ms())

    def upkeep_done(self, done: UpkeepReport) -> None:
        last = self._upkeep
        sums = {name: getattr(last, name) + count for name, count in asdict(done).items()}
        self._upkeep = UpkeepStatus(done_at_ms=self._clock_ms(), **sums)

    def upkeep_failed(self, error: Exception) -> None:
        last, at_ms = self._upkeep, self._clock_ms()
        since_ms = at_ms if last.failing_since_ms is None else last.failing_since_ms
        self._upkeep = replace(last, running_since_ms=None, failing_since_ms=since_ms, error=bounded(str(error)))

    def read(self) -> WriteStatus:
        at_ms, sources, shapes, cuts = self._clock_ms(), self._sources, self._shapes, self._cuts
        names = sorted({*sources, *(shapes or {})})
        of_shapes = {name: None if shapes is None else shapes.get(name, SourceShapes()) for name in names}

        def source(name: str) -> WrittenSource:
            cut_lsn, cut_at_ms = cuts.get(name, (None, None))
            known = sources.get(name, WrittenSource(name))
            return replace(known, shapes=of_shapes[name], cut_lsn=cut_lsn, cut_at_ms=cut_at_ms)

        return WriteStatus(
            at_ms,
            self._started_at_ms,
            sources=tuple(map(source, names)),
            rows_per_s=self._rows_per_s(at_ms),
            failure=self._failure,
            upkeep=self._upkeep,
            snapshots=None if self.snapshots is None else self.snapshots.read(),
            **self.figures()._asdict(),
        )

    def _rows_per_s(self, at_ms: int) -> int:
        rows = sum(count for written_at_ms, count in self._recent if written_at_ms > at_ms - _RATE_MS)
        return rows * 1000 // max(min(at_ms - self._started_at_ms, _RATE_MS), 1)


def _with(source: WrittenSource, batch: WrittenBatch, at_ms: int) -> WrittenSource:
    found = replace(source, rows=source.rows + batch.rows)
    if batch.flushed_lsn is not None:
        lsn = max(batch.flushed_lsn, source.flushed_lsn or 0)
        found = replace(found, flushed_lsn=lsn, notified_at_ms=at_ms)
    if batch.commit_at_ms is not None:
        # The server's clock may be ahead.
        delay_ms = max(at_ms - batch.commit_at_ms, 0)
        found = replace(found, commit_at_ms=batch.commit_at_ms, written_after_ms=delay_ms)
    return found
