"""``ServeStatus``: what the HTTP server of shapes reports about itself."""

from dataclasses import dataclass
from typing import Final

SERVE: Final = "serve"


@dataclass(frozen=True, slots=True)
class ServeStatus:
    """The server at ``at_ms``.

    ``problem``: why the last look at the tables found nothing, ``None`` if it did; ``not_ready_because``: why nothing
    can be answered. ``looked_at_ms`` is when the last look that found something began. ``answers`` are counted by
    status since the start, and so are reads: of logs, and of rows for new clients.
    """

    at_ms: int
    started_at_ms: int
    not_ready_because: str | None
    problem: str | None
    looked_at_ms: int | None
    looks: int
    failed_looks: int
    log_version: int
    shapes: int
    watched_shapes: int
    connections: int
    waiting_clients: int
    answers: tuple[tuple[int, int], ...]
    sent_bytes: int
    running_log_reads: int
    running_row_reads: int
    log_reads: int
    row_reads: int
    refused_reads: int
    kept_pages: int
    kept_states: int
    kept_memory_bytes: int
    kept_disk_bytes: int
