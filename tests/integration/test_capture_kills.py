"""The closed loop while capture, server, broker and tracker are killed: nothing is lost or confirmed early."""

import pytest

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_loop_parts import Tracker, Writers
from tests.support.capture_rig import CaptureRig, RigOn
from tests.support.closed_loop import ClosedLoop, prepare
from tests.support.killed_capture import POINTS

SEED = 20261121


@pytest.fixture
def rig(postgres: LocalPostgres, killable_broker: LocalBroker, rig_on: RigOn) -> tuple[CaptureRig, LocalBroker]:
    """A rig on a server and a broker that the test may kill."""
    rig = rig_on(postgres, broker=killable_broker)
    prepare(rig)
    return rig, killable_broker


def restart_lsn(rig: CaptureRig) -> int:
    """The slot's ``restart_lsn``, from which the server retains WAL; a checkpoint lets it advance."""
    ((lsn,),) = rig.server.execute("CHECKPOINT", "SELECT restart_lsn::text FROM pg_replication_slots")
    return parse_lsn(lsn)


def test_kills_lose_nothing_and_confirm_nothing_early(rig: tuple[CaptureRig, LocalBroker]) -> None:
    """The slot never passes anything unflushed, and at the end each shape's log reproduces its rows."""
    capture_rig, broker = rig
    loop = ClosedLoop(capture_rig, SEED, Writers, Tracker)
    first_restart_lsn = restart_lsn(capture_rig)
    for number, point in enumerate(POINTS):
        # The registry's points are passed during the start, once with the shapes and once with the source; the others
        # only under load.
        passes = str(number) if "registry" in point else str(10 + 3 * number)
        # Each process cuts what it sends again into other fragments.
        capture_rig.settings["capture"]["max_batch_bytes"] = 300 + 200 * number
        process = capture_rig.start_process("tests.support.killed_capture", point, passes)
        loop.run_until(lambda process=process: process.poll() is not None, point)  # type: ignore[misc]  # a default
        assert process.returncode == -9, f"{point}: {capture_rig.log()[-2000:]}"
        loop.tracker.restart(lost_checkpoint=number % 2 == 1)
        loop.step()
    process = capture_rig.start_process()
    before = len(capture_rig.fragments())
    loop.run_until(lambda: len(capture_rig.fragments()) > before + 10, "more fragments")
    capture_rig.server.kill()
    capture_rig.server.start()
    broker.kill()
    loop.workload.step()
    loop.sample()
    broker.start()
    before = len(capture_rig.fragments())
    loop.run_until(
        lambda: process.poll() is not None or len(capture_rig.fragments()) > before + 10,
        "more fragments after the kills",
    )
    assert process.poll() is None, capture_rig.log()[-2000:]
    loop.finish()
    loop.run_until(lambda: restart_lsn(capture_rig) > first_restart_lsn, "restart_lsn advanced")
    loop.run_until(
        lambda: len({sample.confirmed_lsn for sample in loop.samples}) > len(POINTS), "the slot was confirmed often"
    )
    loop.finish()
    process.terminate()
    assert process.wait(30) == 0, capture_rig.log()[-2000:]
    loop.check()
