"""Two writers on one slot, one of them in Kafka's transactions, while the tracking job and capture are killed."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_rig import CaptureRig, RigOn
from tests.support.closed_loop import SHAPES, ClosedLoop, prepare
from tests.support.killed_job import POINTS
from tests.support.seeds import in_turn
from tests.support.tracking_process import TrackingProcess
from tests.support.two_writers import TwoWriters
from tests.support.waiting import wait_until

_SEED: Final = 1
_PASSES: Final = 2


@pytest.fixture
def loop(postgres: LocalPostgres, rig_on: RigOn) -> Iterator[ClosedLoop[TwoWriters, TrackingProcess]]:
    """The closed loop, in which "others" is of the writer ``own``."""
    rig = rig_on(postgres)
    prepare(rig)
    rig.define(*({**each, "writer": "own" if each["id"] == "others" else "log"} for each in SHAPES))
    loop = ClosedLoop(rig, _SEED, TwoWriters, TrackingProcess)
    with closing(loop.writers), closing(loop.tracker):
        yield loop


@pytest.mark.parametrize("point", in_turn([*POINTS]))
@pytest.mark.parametrize("behind", in_turn(["log", "own"]))
def test_the_slot_waits_for_the_right_writer_under_kills(
    loop: ClosedLoop[TwoWriters, TrackingProcess], point: str, behind: str
) -> None:
    """Each writer notifies the shapes of both, and one is behind; the status names that one.

    The slot never passes what a shape's own writer has not stored, and reaches the end after the kill.
    """
    rig, writers, job = loop.rig, loop.writers, loop.tracker
    capture = rig.start_process()
    writers.behind = behind
    job.start(point, _PASSES)
    loop.run_until(lambda: writers.is_behind(behind), f"changes for {behind}")
    capture = kill(rig, capture)
    holders = dict.fromkeys(writers.shapes_of(behind), behind)

    def are_named() -> bool:
        loop.step(chance=1.0)
        loop.check_samples()
        return named(job) == holders

    wait_until(are_named, f"{holders} alone are behind", 240)
    job.arm()
    writers.behind = None
    loop.run_until(lambda: job.is_killed() and writers.ended.keys() == {"commit", "abort", "killed"}, point)
    job.start(point, _PASSES)
    # Each step of the loop needs the processor, too.
    wait_until(job.status, "the job's status", 240)
    loop.finish()
    assert capture.poll() is None, rig.log()
    loop.check()


def named(job: TrackingProcess) -> dict[str, str]:
    """The shapes that hold the slot, by what the job reports; each with its writer."""
    status = job.status()
    holders = () if status is None else [each for source in status.sources for each in source.holders]
    return {each.shape_id: each.writer for each in holders}


def kill(rig: CaptureRig, capture: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Kill capture, and start it again."""
    assert capture.poll() is None, rig.log()
    capture.kill()
    capture.wait()
    return rig.start_process()
