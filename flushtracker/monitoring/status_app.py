"""``StatusApp``: the paths of a program's status, as a WSGI application."""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_status import JobStatus

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

Status: TypeAlias = JobStatus | CaptureStatus


class StatusApp:
    """A WSGI application."""

    def __init__(self, read: Callable[[], Status]) -> None:
        self._read = read

    def __call__(self, _environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        body = json.dumps(self._read().to_json()).encode()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]
