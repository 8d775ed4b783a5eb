"""``ProgramStatus``: the document of either program, and how it is read from another one's ``/status.json``."""

import json
from typing import Any, Final, TypeAlias

from flushtracker.errors import DecodeError
from flushtracker.status.capture_status import CAPTURE, CaptureStatus
from flushtracker.status.job_status import TRACK, JobStatus

ProgramStatus: TypeAlias = JobStatus | CaptureStatus

_SUBJECT: Final = "the status of a flushtracker program, version 1"


def parse_status(data: bytes) -> ProgramStatus:
    """Read the output of ``to_json`` of either document; raises ``DecodeError``."""
    try:
        fields = json.loads(data)
        status = _status(fields["program"], fields) if fields["version"] == 1 else None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DecodeError(f"it is not {_SUBJECT}") from error
    if status is None or not all(isinstance(source, str | None) for source in _sources(status)):
        raise DecodeError(f"it is not {_SUBJECT}")
    return status


def _status(program: object, fields: dict[str, Any]) -> ProgramStatus | None:
    if program == TRACK:
        return JobStatus.from_json(fields)
    return CaptureStatus.from_json(fields) if program == CAPTURE else None


def _sources(status: ProgramStatus) -> list[str | None]:
    return [source.source for source in status.sources] if isinstance(status, JobStatus) else [status.source]
