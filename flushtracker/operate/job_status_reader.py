"""``read_job_status``: a program's ``/status.json`` over HTTP, as :class:`JobStatus` if it is the tracking job's.

What answers may be anything: another program, another release, a proxy's page. It becomes a ``StatusError``.
"""

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from flushtracker.errors import StatusError
from flushtracker.status.job_status import TRACK, JobStatus

_PATH: Final = "/status.json"
_VERSION: Final = 1
_MAX_BYTES: Final = 4 << 20
_SHOWN_LENGTH: Final = 200

# A proxy of the environment is for the world outside; the job is near.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_job_status(url: str, timeout_s: float) -> JobStatus | None:
    """The status of the job at ``url``, or ``None`` if another program of flushtracker answers there.

    Each step over the network may take ``timeout_s``; many small ones may take longer.

    Raises:
        StatusError: nothing answers, or what answers is not a status of this version.
    """
    body = _fetch(url, timeout_s)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _not_a_status(url, "not JSON") from error
    version, program = (document.get(name) for name in ("version", "program")) if isinstance(document, dict) else (0, 0)
    if not (isinstance(program, str) and type(version) is int):
        raise _not_a_status(url, "JSON without version and program")
    if version != _VERSION:
        raise _not_a_status(url, f"version {version}, where this flushtracker reads {_VERSION}; use the job's release")
    if program != TRACK:
        return None
    try:
        status = JobStatus.from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_a_status(url, f"malformed: {type(error).__name__} {error}"[:_SHOWN_LENGTH]) from error
    if not _has_type(status, JobStatus):
        raise _not_a_status(url, "malformed: a value has another type")
    return status


def _fetch(url: str, timeout_s: float) -> bytes:
    try:
        with _OPENER.open(url + _PATH, timeout=timeout_s) as response:
            body: bytes = response.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise _not_a_status(url, f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise StatusError(f"job {url} does not answer ({_reason(error, timeout_s)})") from error
    if len(body) > _MAX_BYTES:
        raise _not_a_status(url, f"more than {_MAX_BYTES} bytes")
    return body


def _not_a_status(url: str, fact: str) -> StatusError:
    return StatusError(f"job {url} answers, but not with its status: {fact}")


def _reason(error: Exception, timeout_s: float) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"nothing for {timeout_s:g} s"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, http.client.HTTPException | ValueError):
        return f"not HTTP: {type(cause).__name__}"
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return " ".join(text.split())[:_SHOWN_LENGTH]


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a document's value has the type that its field declares, which a dataclass does not check."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_has_type(item, get_args(hint)[0]) for item in value)
    if isinstance(hint, UnionType):
        return any(_has_type(value, option) for option in get_args(hint))
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return type(value) is hint and all(_has_type(getattr(value, f.name), hints[f.name]) for f in fields(hint))
    return type(value) is hint
