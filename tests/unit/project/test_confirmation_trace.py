"""``ConfirmationTrace`` accepts what capture may confirm, and refuses what the model does not allow."""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from flushtracker.process.log_format import log_formatter
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.lsn import format_lsn
from tests.support.confirmation_trace import ConfirmationTrace

_T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def acks(*lsns: int) -> list[Ack]:
    """One each second."""
    return [Ack(n, lsn, lsn, 0, None, None, _T0 + timedelta(seconds=n)) for n, lsn in enumerate(lsns)]


def line(second: float, event: str, lsn: int) -> str:
    """As capture logs it."""
    record = logging.LogRecord("x", logging.DEBUG, "", 0, f"{event} confirmed_lsn=%s", (format_lsn(lsn),), None)
    record.created = (_T0 + timedelta(seconds=second)).timestamp()
    return log_formatter("json").format(record) + "\n"


def judged(folder: Path, lines: Iterable[str], *lsns: int) -> ConfirmationTrace:
    (folder / "capture.log").write_text("".join(lines))
    trace = ConfirmationTrace(folder / "capture.log", first_lsn=100)
    trace.poll()
    trace.check(acks(*lsns))
    return trace


def test_confirmations_follow_the_acks(tmp_path: Path) -> None:
    """A connection begins where the slot is; a cut line is no event."""
    lines = [
        line(0, "capturing", 100),
        line(0.5, "slot confirmed", 201),
        '{"message": "slot conf',
        line(0.6, "fragment sent", 999),
        line(0.7, "capturing", 201),
        line(1.5, "slot confirmed", 250),
        line(1.6, "slot confirmed", 301),
    ]
    trace = judged(tmp_path, lines, 200, 300)
    assert (trace.connections, trace.confirmations, trace.greatest_lsn) == (2, 3, 301)


def test_log_is_read_on_from_the_last_whole_line(tmp_path: Path) -> None:
    whole = line(0.5, "slot confirmed", 201)
    trace = judged(tmp_path, [whole[:30]], 200)
    assert trace.confirmations == 0
    with (tmp_path / "capture.log").open("a") as log:
        log.write(whole[30:])
    trace.poll()
    trace.check(acks(200))
    assert (trace.confirmations, trace.greatest_lsn) == (1, 201)


@pytest.mark.parametrize(
    ("lines", "refusal"),
    [
        ([line(0.5, "slot confirmed", 202)], "capture confirmed 0/CA at"),
        ([line(0.5, "slot confirmed", 301)], "when at most 0/C9 was acknowledged"),
        ([line(1.5, "slot confirmed", 301), line(1.6, "slot confirmed", 301)], "capture confirmed 0/12D after 0/12D"),
        ([line(1.5, "capturing", 300), line(1.6, "slot confirmed", 201)], "capture confirmed 0/C9 after 0/12C"),
    ],
    ids=["past the ack", "before the ack", "twice", "back"],
)
def test_what_the_model_does_not_allow_is_refused(tmp_path: Path, lines: list[str], refusal: str) -> None:
    with pytest.raises(AssertionError, match=refusal):
        judged(tmp_path, lines, 200, 300)
