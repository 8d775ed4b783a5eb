"""``StatusSender`` over a fake stream, and the acks that it follows."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import unpack
from threading import Event
from types import FrameType
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from flushtracker.capture.wire.source_acks import MissingTableLog, SourceAcks
from flushtracker.capture.wire.standby_status import StandbyStatus, StatusSender
from flushtracker.capture.wire.stuck_ack import LEAST_BYTES, StuckAck
from flushtracker.errors import PostgresUnavailableError, SinkError
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckTable

DEADLINE_S: Final = 10.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Stream:
    """Records the flush position and the reply request of each update."""

    def __init__(self) -> None:
        self.flushed: list[int] = []
        self.reply_requests = 0
        self.is_cut = False

    def send(self, status_update: bytes) -> None:
        if self.is_cut:
            raise PostgresUnavailableError("the connection was cut")
        _, _, flushed, _, _, reply = unpack(">cQQQqB", status_update)
        self.reply_requests += reply
        self.flushed.append(flushed)


class Table:
    """An ack table: the last ack of each source, or ``None`` while there is no table."""

    def __init__(self, acks: dict[str, int] | None) -> None:
        self.acks = acks
        self.reads = 0
        self.error: SinkError | None = None

    @property
    def exists(self) -> bool:
        return self.acks is not None

    def last_ack(self, source: str) -> int | None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return None if self.acks is None else self.acks.get(source)


def status() -> StandbyStatus:
    """A connection that has received and published everything up to 9000; the slot is at 1000."""
    status = StandbyStatus(1000)
    status.handle_received(9000)
    status.handle_published(9000)
    return status


def sender(stream: Stream, status_s: float = 0.001) -> StatusSender:
    return StatusSender(stream, status(), status_s=status_s, acks_s=0.001)


def acks(table: Table, source: str) -> SourceAcks:
    return SourceAcks(table, source, MissingTableLog("/acks"))


def test_status_updates_are_sent_before_the_source_is_known() -> None:
    """Reading the registry may take longer than `wal_sender_timeout`; no ack is read meanwhile."""
    stream = Stream()
    with sender(stream):
        wait_until(lambda: len(stream.flushed) > 5)
    assert set(stream.flushed) == {1000}


def test_only_the_acks_of_the_connections_source_are_read() -> None:
    """Two timelines have acks in the same table; each connection follows its own."""
    table = Table({"7/1/s": 4000, "7/2/s": 2000})
    first, second = Stream(), Stream()
    with sender(first) as connection:
        connection.follow_acks(acks(table, "7/1/s"), StuckAck())
        wait_until(lambda: max(first.flushed, default=0) > 1000)
        with pytest.raises(RuntimeError, match="already follows"):
            connection.follow_acks(acks(table, "7/2/s"), StuckAck())
    with sender(second) as connection:
        connection.follow_acks(acks(table, "7/2/s"), StuckAck())
        wait_until(lambda: max(second.flushed, default=0) > 1000)
    assert set(first.flushed) <= {1000, 4001}
    assert set(second.flushed) <= {1000, 2001}


def test_an_ack_that_is_read_after_the_connection_ended_is_discarded() -> None:
    """Slow storage answers when another connection holds the slot."""
    release, table, stream = Event(), Table({"7/1/s": 4000}), Stream()
    positions = status()

    class SlowAcks:
        def last_ack(self) -> int | None:
            release.wait(DEADLINE_S)
            return table.last_ack("7/1/s")

    with StatusSender(stream, positions, status_s=0.001, acks_s=0.001) as connection:
        connection.follow_acks(SlowAcks(), StuckAck())
    release.set()
    wait_until(lambda: table.reads == 1)
    assert positions.acknowledged_lsn == -1


def test_unreadable_acks_delay_the_slot_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Status updates continue, and the acks too once their storage is back."""
    table, stream = Table({"7/1/s": 4000}), Stream()
    table.error = SinkError("storage is down")
    with sender(stream) as connection:
        connection.follow_acks(acks(table, "7/1/s"), StuckAck())
        wait_until(lambda: table.reads > 3 and len(stream.flushed) > 5)
        assert set(stream.flushed) == {1000}
        table.error = None
        wait_until(lambda: stream.flushed[-1] == 4001)
    assert "acks not readable reason=storage is down" in caplog.text


def test_the_confirmed_position_is_logged_as_an_lsn(caplog: pytest.LogCaptureFixture) -> None:
    """It can be searched for as the server shows it."""
    caplog.set_level(logging.DEBUG)
    stream = Stream()
    with sender(stream) as connection:
        connection.follow_acks(acks(Table({"7/1/s": 4000}), "7/1/s"), StuckAck())
        wait_until(lambda: "slot confirmed" in caplog.text)
    assert "slot confirmed confirmed_lsn=0/FA1" in caplog.text


def request_reply_at(opcode: int) -> bool:
    """Request a reply just before this instruction of the thread that sends updates; whether one was requested.

    That is where another thread may run. The thread's instructions are counted from its start.
    """
    stream = Stream()
    connection = sender(stream)
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        if frame.f_code.co_name != "_send_updates":
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            # From Python 3.12 on, only a function that is set from then on is told of opcodes.
            sys.settrace(trace)
        if event == "opcode":
            executed += 1
            if executed == opcode:
                connection.send_soon(request_reply=True)
        return trace

    threading.settrace(trace)
    try:
        with connection:
            wait_until(lambda: executed > opcode)
            sent = len(stream.flushed)
            wait_until(lambda: len(stream.flushed) > sent + 2)
    finally:
        threading.settrace(None)
    return stream.reply_requests == 1


def test_no_request_for_a_reply_is_lost_between_two_threads() -> None:
    """A lost one would make a live connection count as dead. Every place in the loop's first rounds is tried."""
    assert [opcode for opcode in range(1, 200) if not request_reply_at(opcode)] == []


def test_a_dead_tracking_job_is_logged_while_capture_publishes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Without a status page or an alert, and also if the acks cannot be read; and once that the ack advances again."""
    caplog.set_level(logging.INFO)
    positions, table = status(), Table({"7/1/s": 4000})
    published_lsn = 4000 + LEAST_BYTES + 1
    positions.handle_published(published_lsn)
    with StatusSender(Stream(), positions, status_s=0.001, acks_s=0.001) as connection:
        connection.follow_acks(acks(table, "7/1/s"), StuckAck(first_s=0.05))
        wait_until(lambda: "ack stuck" in caplog.text)
        table.error = SinkError("the storage is down")
        caplog.clear()
        wait_until(lambda: "ack stuck" in caplog.text)
        assert "ack_lsn=0/FA0 published_lsn=0/1000FA1 behind_bytes=16777217 seconds=" in caplog.text
        table.error, table.acks = None, {"7/1/s": published_lsn}
        wait_until(lambda: "ack advances again" in caplog.text)
        reads = table.reads
        wait_until(lambda: table.reads > reads + 10)
    assert [record.levelname for record in caplog.records if "again" in record.message] == ["INFO"]


class Clock:
    """A clock that the test sets, in seconds."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_missing_ack_table_is_reported_at_growing_intervals_until_it_exists(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong path keeps the slot where it is; the warning names the key and where the path leads."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    clock, table = Clock(), Table(None)
    source_acks = SourceAcks(table, "7/1/s", MissingTableLog("data/acks", clock))
    warned_at = []
    while clock.now_s < 15_000:
        caplog.clear()
        assert source_acks.last_ack() is None
        warned_at += [clock.now_s] * len(caplog.records)
        clock.now_s += 10
    assert warned_at == [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980, 14580]
    clock.now_s += 3600
    source_acks.last_ack()
    assert f"acks={Path.cwd() / 'data' / 'acks'}; storage must" in caplog.messages[-1]
    table.acks = {"7/1/s": 4000}
    assert [source_acks.last_ack(), source_acks.last_ack()] == [4000, 4000]
    assert caplog.messages[1:] == [f"ack table found acks={Path.cwd() / 'data' / 'acks'}"]


def test_a_missing_ack_table_does_not_count_as_read() -> None:
    """Or the alert about an ack table that capture cannot read would not fire where the path is wrong."""
    table, reads = Table(None), 0

    def count() -> None:
        nonlocal reads
        reads += 1

    source_acks = SourceAcks(table, "7/1/s", MissingTableLog("data/acks"), count)
    source_acks.last_ack()
    assert reads == 0
    table.acks = {}
    source_acks.last_ack()
    assert reads == 1


def test_a_reconnect_does_not_repeat_the_warning_about_a_missing_ack_table(caplog: pytest.LogCaptureFixture) -> None:
    """The log is kept across connections, each of which reads the table anew; a URL is shown as it is."""
    log = MissingTableLog("s3://bucket/acks", Clock())
    for source in ("7/1/s", "7/1/s", "7/2/s"):
        SourceAcks(Table(None), source, log).last_ack()
    assert len(caplog.records) == 1
    assert "acks=s3://bucket/acks; " in caplog.text


def test_newcomer_names_another_folder_as_the_acks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder of something else will never be an ack table, unlike one that the tracker is about to create."""
    (tmp_path / "log.parquet").touch()
    for folder in (tmp_path, tmp_path / "none"):
        SourceAcks(AckReader(str(folder)), "7/1/s", MissingTableLog(str(folder), Clock())).last_ack()
    other, new = caplog.messages
    assert f"acks={tmp_path}; that folder has other files; storage must" in other
    assert f"acks={tmp_path}/none; storage must" in new


@pytest.mark.parametrize("prefix", ["file://", "file://localhost", "file:"])
def test_newcomer_names_another_folder_by_its_uri(
    tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the same folder, and is told as it was named."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "log.parquet").touch()
    uri = f"{prefix}{tmp_path}/a%20b"
    MissingTableLog(uri, Clock()).record(exists=False)
    assert f"acks={uri}; that folder has other files; " in caplog.text


def test_newcomer_names_a_file_or_the_shape_log_as_the_acks(tmp_path: Path) -> None:
    """Capture ends at its start: neither can become an ack table, and the message has what to name instead."""
    (tmp_path / "file").touch()
    create_shape_log(str(tmp_path / "log"), {})
    for name in ("file", "log"):
        with pytest.raises(SinkError, match=r"name the storage of `flushtracker track`$"):
            SourceAcks(AckReader(str(tmp_path / name)), "7/1/s", MissingTableLog(name, Clock())).last_ack()


def test_the_reader_tells_a_missing_table_from_one_without_this_source(tmp_path: Path) -> None:
    """An empty folder is no table; a table of another kind is an error, since it will never have acks."""
    reader = AckReader(str(tmp_path / "acks"))
    assert (reader.last_ack("7/1/s"), reader.exists) == (None, False)
    (tmp_path / "acks").mkdir()
    assert (reader.last_ack("7/1/s"), reader.exists) == (None, False)
    AckTable(str(tmp_path / "acks"))
    assert (reader.last_ack("7/1/s"), reader.exists) == (None, True)
    write_deltalake(str(tmp_path / "other"), pa.table({"reason": ["malformed"]}))
    with pytest.raises(SinkError, match=r"is a Delta table without the columns source, .*, so it is not the ack table"):
        AckReader(str(tmp_path / "other")).last_ack("7/1/s")


def test_an_existing_ack_table_without_this_source_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A new source has no ack yet."""
    assert acks(Table({"7/1/s": 4000}), "7/2/s").last_ack() is None
    assert caplog.records == []
