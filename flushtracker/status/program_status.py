"""``ProgramStatus``: the document of any program, and its strict reader."""

import json
from typing import Any, Final, TypeAlias

from msgspec import ValidationError, convert

from flushtracker.errors import DecodeError
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.document import VERSION, lsn_from_json
from flushtracker.status.job_status import JobStatus
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.sink_status import SinkStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus

ProgramStatus: TypeAlias = JobStatus | WriteStatus | SnapshotStatus | ServeStatus | CaptureStatus | SinkStatus

_INTEGERS: Final = range(-(2**63), 2**64)
"""JSON has no limit, but our arithmetic has. LSNs have 64 bits; ``safe_wal_size`` may be negative."""
_SUBJECT: Final = "the status of a flushtracker program, version"


def parse_status(data: bytes) -> ProgramStatus:
    """Read the output of ``to_json`` of any document; raises ``DecodeError`` for anything else."""
    try:
        document = json.loads(data)
        version = document["version"]
        if type(version) is int and version != VERSION:
            raise DecodeError(f"it is {_SUBJECT} {version}, not {VERSION}; use the same release")
        status: ProgramStatus = convert(document, ProgramStatus, dec_hook=lsn_from_json)
    except (KeyError, TypeError, ValueError, RecursionError, ValidationError) as error:
        raise DecodeError(f"it is not {_SUBJECT} {VERSION}") from error
    if type(version) is not int or not _is_whole(document, status.to_json()):
        raise DecodeError(f"it is not {_SUBJECT} {VERSION}")
    return status


def _is_whole(found: Any, written: Any) -> bool:
    """Whether a document has every key that is written, and its integers fit in 64 bits."""
    if isinstance(written, dict):
        return all(key in found and _is_whole(found[key], value) for key, value in written.items())
    if isinstance(written, list):
        return all(map(_is_whole, found, written))
    return type(written) is not int or written in _INTEGERS
