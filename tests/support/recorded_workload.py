"""The recorded PostgreSQL workload as micro-batches, replayed with the shapes of ``conf/shapes.yaml``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Final

from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.recordings.recording import read_recording
from flushtracker.trials.recordings.replay import Replay
from flushtracker.wal.log_offset import LogOffset
from tests.support.ack_rows import AckRows, acks_of
from tests.support.job_folder import JobFolder
from tests.support.simulated_job import SimulatedJob
from tests.support.wal_history import Event

SOURCE: Final = "recording/1/shapes"
_ROOT: Final = Path(__file__).parents[2]
RECORDING: Final = _ROOT / "tests" / "recording"
RECORDING_OPTIONS: Final = ("--recording", str(RECORDING), "--shapes", str(_ROOT / "conf" / "shapes.yaml"))
"""With which ``replay`` and ``verify`` take it."""
PUBLISHED: Final = {("public", name) for name in ("users", "orders", "order_items", "audit", "events_p0", "events_p1")}


class _Writers:
    """One writer for each shape, which stores nothing: it flushes at random, also inside a transaction."""

    def __init__(self) -> None:
        self._rng = Random(1)  # noqa: S311  reproducible
        self._sent: dict[str, LogOffset] = {}
        self._flushed: dict[str, LogOffset] = {}

    def take(self, events: Iterable[ShapeChangesEvent], share: float = 0.3) -> list[FlushNotification]:
        """Buffer the changes; this share of the writers flushes all that is buffered."""
        self._sent |= {event.shape_id: event.items[-1].offset for event in events if event.items}
        waiting = {shape_id: last for shape_id, last in self._sent.items() if self._flushed.get(shape_id) != last}
        flushed = {shape_id: last for shape_id, last in waiting.items() if self._rng.random() < share}
        self._flushed |= flushed
        return _notifications(flushed)

    def restart(self) -> list[FlushNotification]:
        """Each repeats its last notification."""
        return _notifications(self._flushed)


def _notifications(flushed: Mapping[str, LogOffset]) -> list[FlushNotification]:
    return [FlushNotification(SOURCE, "flushed", shape_id, last, "log") for shape_id, last in flushed.items()]


def recorded_batches(ticks_per_batch: int) -> tuple[list[list[Event]], int]:
    """The fragments and flushes of the workload in batches of this many ticks, and the LSN of its last commit."""
    definitions = load_shapes(_ROOT / "conf" / "shapes.yaml")
    replay, writers = Replay(SOURCE, definitions, fragments_per_tick=12), _Writers()
    batches: list[list[Event]] = []
    for number, tick in enumerate(replay.ticks(read_recording(RECORDING))):
        if number % ticks_per_batch == 0:
            batches.append([])
        flushes = writers.take(tick.shape_changes)
        batches[-1] += [*tick.fragments, *flushes, *(writers.restart() if number % 10 == 9 else [])]
    batches[-1] += writers.take([], share=1)
    assert replay.counts.last_commit is not None
    return batches, replay.counts.last_commit.tx_offset


def write_recorded_workload(job: JobFolder, ticks_per_batch: int) -> list[int]:
    """Write the workload to the job's streams; return the acks of the core alone for the same batches."""
    core = SimulatedJob(AckRows())
    batches, last_commit_lsn = recorded_batches(ticks_per_batch)
    for batch in batches:
        job.write(batch)
        core.run_batch(batch)
    assert core.ack_lsn(SOURCE) == last_commit_lsn
    return acks_of(core.table, SOURCE)
