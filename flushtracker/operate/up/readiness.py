"""``Readiness``: whether all programs do their work, by what they report over HTTP.

Everything runs once each program says that it is ready, and capture has read an ack of everything that the server had
written when the writers' job became ready.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from flushtracker.errors import StatusError
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http.peers import read_program_status
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.query_status import QueryStatus
from flushtracker.status.write_status import SourceShapes, WriteStatus

_STEP_S: Final = 2.0
_FIRST_ACK: Final = "the first ack"
_ACKNOWLEDGED: Final = "first batch acknowledged: from here on, the slot is confirmed"
_LOOKS_BETWEEN_NEWS: Final = 10


class Readiness:
    """``urls`` has the base URL of each program's status."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._found: dict[str, ProgramStatus] = {}
        self._first_lsn: int | None = None
        self._waits_for = [*urls, *([_FIRST_ACK] if "capture" in urls else [])]
        self._looks = 0
        self.confirmed_lsn: int | None = None
        """How far capture has confirmed the slot, as of the last look."""

    @property
    def is_complete(self) -> bool:
        return not self._waits_for

    @property
    def has_rows(self) -> bool:
        """Whether every shape has the rows that its table had before; true if another machine writes them."""
        write = self._found.get("write")
        shapes = [each.shapes or SourceShapes() for each in write.sources] if isinstance(write, WriteStatus) else []
        is_done = any(each.live for each in shapes) and not any(each.without_snapshot_count for each in shapes)
        return "write" not in self._urls or is_done

    def look(self) -> None:
        """Ask every program."""
        self._looks += 1
        answers = {program: _ask(url) for program, url in self._urls.items()}
        self._found = {program: answer for program, answer in answers.items() if answer is not None}
        if isinstance(capture := self._found.get("capture"), CaptureStatus):
            self.confirmed_lsn = capture.confirmed_lsn or self.confirmed_lsn
            writes = "write" not in self._urls or self._is_there("write")
            if self._first_lsn is None and capture.slot is not None and writes:
                self._first_lsn = capture.slot.written_lsn

    def news(self) -> Iterator[str]:
        """A line for each program that has become ready, and every ten seconds one for those that have not."""
        before = len(self._waits_for)
        for each in list(self._waits_for):
            if self._is_there(each):
                self._waits_for.remove(each)
                yield _ACKNOWLEDGED if each == _FIRST_ACK else f"{each} is ready"
        if len(self._waits_for) == before and self._looks % _LOOKS_BETWEEN_NEWS == 0:
            yield f"waiting for {', '.join(map(self._with_reason, self._waits_for)) or 'the rows of new shapes'}"

    def may_start(self, program: str) -> bool:
        """Whether what a program needs at its start is there: topics for the jobs, tables for the server."""
        if program == "capture":
            return True
        if program != "serve" or "write" not in self._urls:
            return "capture" not in self._urls or "capture" in self._found
        write = self._found.get("write")
        if not isinstance(write, WriteStatus):
            return False
        # A job that has nothing to read, because nothing has changed since its last start, does not look at its tables.
        return write.is_ready or any(source.shapes is not None for source in write.sources)

    def _is_there(self, each: str) -> bool:
        if each != _FIRST_ACK:
            return each in self._found and self._reason(each) is None
        capture = self._found.get("capture")
        acknowledged = capture.acknowledged_lsn if isinstance(capture, CaptureStatus) else None
        return acknowledged is not None and self._first_lsn is not None and acknowledged >= self._first_lsn - 1

    def _with_reason(self, each: str) -> str:
        """What is waited for; a job only says that its query starts."""
        is_job = isinstance(self._found.get(each), QueryStatus)
        return each if is_job or (reason := self._reason(each)) is None else f"{each} ({reason})"

    def _reason(self, program: str) -> str | None:
        status = self._found.get(program)
        return None if status is None else status.not_ready_because


def _ask(url: str) -> ProgramStatus | None:
    try:
        return read_program_status(url, _STEP_S)
    except StatusError:
        return None
