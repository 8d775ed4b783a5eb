"""The recorded PostgreSQL workload as micro-batches, replayed with the shapes of ``conf/shapes.yaml``."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from flushtracker.recordings.recording import read_recording
from flushtracker.recordings.replay import Replay
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.ack_rows import AckRows, acks_of
from tests.support.job_folder import JobFolder
from tests.support.simulated_job import SimulatedJob
from tests.support.simulated_writers import SimulatedWriters
from tests.support.wal_history import Event

SOURCE: Final = "recording/1/shapes"
_ROOT: Final = Path(__file__).parents[2]
RECORDING: Final = _ROOT / "tests" / "recording"
RECORDING_OPTIONS: Final = ("--recording", str(RECORDING), "--shapes", str(_ROOT / "conf" / "shapes.yaml"))
"""With which ``replay`` and ``verify`` take it."""
PUBLISHED: Final = {("public", name) for name in ("users", "orders", "order_items", "audit", "events_p0", "events_p1")}


def recorded_batches(ticks_per_batch: int) -> tuple[list[list[Event]], int]:
    """The fragments and flushes of the workload in batches of this many ticks, and the LSN of its last commit."""
    # The slow shape of `make run` would hold the ack for most of the recording, and leave two acks to compare.
    definitions = [
        replace(each, flush=replace(each.flush, bytes=131_072, interval_ms=500)) if each.id == "events" else each
        for each in load_shapes(_ROOT / "conf" / "shapes.yaml")
    ]
    replay, writers = Replay(SOURCE, definitions, fragments_per_tick=12), SimulatedWriters(SOURCE, definitions)
    batches: list[list[Event]] = []
    now_ms = 0
    for number, tick in enumerate(replay.ticks(read_recording(_ROOT / "tests" / "recording"))):
        if number % ticks_per_batch == 0:
            batches.append([])
        for fragment in tick.fragments:
            if fragment.commit is not None:
                # Python 3.10 does not accept the Z.
                committed_at = datetime.fromisoformat(fragment.commit.commit_timestamp.replace("Z", "+00:00"))
                now_ms = max(now_ms, int(committed_at.timestamp() * 1000))
        flushes = [*writers.take(tick.shape_changes, now_ms), *writers.advance(now_ms)]
        batches[-1] += [*tick.fragments, *flushes, *(writers.restart() if number % 10 == 9 else [])]
    batches[-1] += writers.flush_all()
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
