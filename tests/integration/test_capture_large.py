"""A transaction much larger than what capture keeps in memory."""

from pathlib import Path

import pytest

from flushtracker.events.stream_events import FlushNotification
from flushtracker.local.postgres import LocalPostgres
from tests.support.ack_rows import AckRows
from tests.support.capture_rig import CaptureRig, RigOn, run_in_transaction, shape
from tests.support.simulated_job import SimulatedJob
from tests.support.waiting import wait_until

ROWS = 200_000
INSERT = "INSERT INTO users SELECT g, 'note ' || g FROM generate_series(1, {rows}) g"
MAX_GROWTH_KIB = 64 << 10


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:
    """One table, and a shape that matches every row."""
    rig = rig_on(postgres)
    rig.create()
    postgres.execute("CREATE TABLE users (id int PRIMARY KEY, note text)")
    rig.define(shape("users"))
    return rig


def peak_kib(pid: int) -> int:
    """The peak memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_large_transaction_goes_through_in_bounded_memory(rig: CaptureRig) -> None:
    """All its rows arrive, in fragments, and capture's memory does not grow with the transaction."""
    process = rig.start_process()
    rig.execute_and_wait("INSERT INTO users VALUES (0, 'first')")
    before_kib = peak_kib(process.pid)
    lsn = rig.commit_lsn(INSERT.format(rows=ROWS))
    wait_until(lambda: process.poll() is not None or rig.fragments()[-1].lsn >= lsn - 1, "the large transaction", 120)
    grown_kib = peak_kib(process.pid) - before_kib
    assert grown_kib < MAX_GROWTH_KIB, f"memory grew by {grown_kib} KiB from {before_kib} KiB"
    fragments = {event.last_log_offset: event for event in rig.fragments()}
    assert sum(part.change_count for event in fragments.values() for part in event.shapes) == ROWS + 1
    process.terminate()
    assert process.wait(60) == 0, rig.log()[-2000:]


def test_a_transaction_of_large_rows_goes_through(rig: CaptureRig) -> None:
    """100 rows of 800 kB fit into one fragment by their number, but its event would be over the topics' limit."""
    rig.define(shape("users"), shape("ids", columns=["id"]))
    capture = rig.start()
    rig.wait(lambda: rig.registry().keys() == {"users", "ids"}, "the shapes")
    lsn = rig.commit_lsn("INSERT INTO users SELECT g, repeat(chr(96 + g % 20), 800000) FROM generate_series(1, 100) g")
    rig.wait_for_commits(lsn)
    capture.stop()
    rows = [item.value for item in rig.items("users")]
    assert rows == [{"id": str(g), "note": chr(96 + g % 20) * 800_000} for g in range(1, 101)]
    assert len(rig.items("ids")) == 100
    assert {entry.removed_at for entry in rig.registry().values()} == {None}


def test_a_row_over_the_topics_limit_ends_its_shape_alone(rig: CaptureRig) -> None:
    """Capture continues, and so do the acks, also over a restart that is sent the row again. Other shapes have it."""
    rig.define(shape("users"), shape("ids", columns=["id"]))
    capture = rig.start()
    rig.wait_for_commits(rig.commit_lsn("INSERT INTO users VALUES (1, 'small')"))
    rows = ["(2, 'small')", "(3, repeat('x', 70000000))", "(4, 'small')"]
    run_in_transaction(rig.server, [f"INSERT INTO users VALUES {row}" for row in rows])  # noqa: S608  the test's own rows
    rig.wait_for_commits(rig.commit_lsn())
    assert "makes an event of 70000001 bytes or more" in (rig.registry()["users"].ended_because or "")
    assert rig.registry()["ids"].removed_at is None
    capture.stop()
    capture = rig.start()
    rig.wait_for_commits(rig.commit_lsn("INSERT INTO users VALUES (5, 'small')"))
    capture.stop()
    assert [item.value for item in rig.items("ids")] == [{"id": str(number)} for number in range(1, 6)]
    assert [item.value and item.value["id"] for item in rig.items("users")] == ["1", "2"]
    acks = AckRows()
    flushed = FlushNotification(rig.source(), "flushed", "ids", rig.items("ids")[-1].offset, "log")
    SimulatedJob(acks).run_batch([*rig.fragments(), rig.removals()["users"], flushed])
    assert acks.rows[-1][1] == max(event.lsn for event in rig.fragments())
