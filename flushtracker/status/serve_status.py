"""``ServeStatus``: the document of the HTTP server of shapes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flushtracker.status.json_document import named_fields

SERVE: Final = "serve"
"""The ``program`` of the document."""


@dataclass(frozen=True, slots=True)
class AnswerCount:
    """How many answers had an HTTP status since the server's start."""

    status: int
    count: int


@dataclass(frozen=True, slots=True)
class ServeStatus:
    """The server at ``at_ms``. ``source``: whose shapes are served, ``None`` for any.

    ``problem``: why the last look at the tables found nothing, ``None`` if it did; ``not_ready_because``: why nothing
    can be answered. ``looked_at_ms`` is when the last look that found something began. ``recent_answers`` are of the
    last minute, ``recent_errors`` those of them with a status from 500 on. Reads are counted since the start: of logs,
    and of rows for new clients.
    """

    at_ms: int
    started_at_ms: int
    source: str | None = None
    not_ready_because: str | None = None
    problem: str | None = None
    looked_at_ms: int | None = None
    looks: int = 0
    failed_looks: int = 0
    log_version: int = 0
    shapes: int = 0
    watched_shapes: int = 0
    connections: int = 0
    waiting_clients: int = 0
    answers: tuple[AnswerCount, ...] = ()
    recent_answers: int = 0
    recent_errors: int = 0
    sent_bytes: int = 0
    running_log_reads: int = 0
    running_row_reads: int = 0
    log_reads: int = 0
    row_reads: int = 0
    refused_reads: int = 0
    kept_pages: int = 0
    kept_states: int = 0
    kept_memory_bytes: int = 0
    kept_disk_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"version": 1, "program": SERVE, **asdict(self), "answers": [asdict(each) for each in self.answers]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ServeStatus":
        """Read the output of :meth:`to_json`; raises ``KeyError`` or ``TypeError`` for another document."""
        answers = tuple(AnswerCount(**named_fields(AnswerCount, each)) for each in fields["answers"])
        return cls(**{**named_fields(cls, fields), "answers": answers})
