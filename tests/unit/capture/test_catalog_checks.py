"""A catalog that takes long to read slows the stream down, but does not take all of the thread that reads it."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from flushtracker.capture import capture_connection
from flushtracker.capture.capture_config import Intervals
from flushtracker.capture.capture_connection import CaptureConnection


@pytest.mark.parametrize(("check_s", "checks"), [(0.0, 50), (3.0, 7)])
def test_comparing_the_catalog_takes_at_most_a_fifth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, check_s: float, checks: int
) -> None:
    """A comparison of tens of thousands of partitions took longer than the interval between two."""
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    parts: dict[str, Any] = {name: MagicMock() for name in ("source", "collector", "stream", "sender", "tables")}
    parts["tables"].wal_sender_timeout_s.return_value = 60.0
    tables = parts["collector"].subscriptions.tables
    tables.check.side_effect = lambda: wait(check_s)
    parts["collector"].subscriptions.refused.definitions = ()
    parts["source"].status = MagicMock(published_lsn=0, acknowledged_lsn=0)
    monkeypatch.setattr(capture_connection, "time", MagicMock(monotonic=lambda: clock[0]))
    monkeypatch.setattr(capture_connection, "format_lsn", str)
    monkeypatch.setattr(capture_connection, "check_messages", MagicMock())
    connection = CaptureConnection(**parts, intervals=Intervals(shapes_ms=2_000))
    while clock[0] < 100:
        wait(0.5)
        connection._run_timers(MagicMock())
    assert tables.check.call_count == checks
