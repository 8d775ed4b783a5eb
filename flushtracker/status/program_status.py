"""``ProgramStatus``: the document of any program, and its strict reader."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert

from flushtracker.errors import DecodeError
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.document import Document, lsn_from_json, program_name
from flushtracker.status.job_status import TRACK, JobStatus
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus

ProgramStatus: TypeAlias = JobStatus | WriteStatus | SnapshotStatus | ServeStatus | CaptureStatus

_VERSION: Final = 1
_KINDS: Final[Mapping[str, type[ProgramStatus]]] = {
    TRACK: JobStatus,
    program_name(WriteStatus): WriteStatus,
    program_name(SnapshotStatus): SnapshotStatus,
    program_name(ServeStatus): ServeStatus,
    program_name(CaptureStatus): CaptureStatus,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_INTEGERS: Final = range(-(2**63), 2**64)
"""JSON has no limit, but our arithmetic has. LSNs have 64 bits; ``safe_wal_size`` may be negative."""
_SUBJECT: Final = "the status of a flushtracker program, version"


def program_of(status: ProgramStatus) -> str:
    """The ``program`` of a document."""
    return _NAMES[type(status)]


def parse_status(data: bytes) -> ProgramStatus:
    """Read the output of ``to_json`` of any document; raises ``DecodeError`` for anything else."""
    try:
        document = json.loads(data)
        version, kind = document["version"], _KINDS[document["program"]]
        status = _read(kind, document) if version == _VERSION else None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, ValidationError) as error:
        raise DecodeError(f"it is not {_SUBJECT} {_VERSION}") from error
    if status is None and type(version) is int:
        raise DecodeError(f"it is {_SUBJECT} {version}, not {_VERSION}; use the same release")
    if status is None or not (
        _is_whole(document, status.to_json()) if isinstance(status, Document) else _has_type(status, kind)
    ):
        raise DecodeError(f"it is not {_SUBJECT} {_VERSION}")
    return status


def _read(kind: type[ProgramStatus], document: Any) -> ProgramStatus:
    return convert(document, kind, dec_hook=lsn_from_json) if issubclass(kind, Document) else kind.from_json(document)


def _is_whole(found: Any, written: Any) -> bool:
    """Whether a document has every key with which it is written, so that nothing is missing, and fits in 64 bits."""
    if isinstance(written, dict):
        return all(key in found and _is_whole(found[key], value) for key, value in written.items())
    if isinstance(written, list):
        return all(map(_is_whole, found, written))
    return type(written) is not int or written in _INTEGERS


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a value has the type that its field declares, which a dataclass does not check, and fits in 64 bits."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_has_type(item, get_args(hint)[0]) for item in value)
    if isinstance(hint, UnionType):
        return any(_has_type(value, option) for option in get_args(hint))
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return type(value) is hint and all(
            _has_type(getattr(value, each.name), hints[each.name]) for each in fields(hint)
        )
    return type(value) is hint and (type(value) is not int or value in _INTEGERS)
