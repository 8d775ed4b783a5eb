"""A program's ``/status.json`` as a real HTTP server in a thread, and the documents that it serves."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Final

from msgspec.structs import replace

from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from flushtracker.wal.lsn import parse_lsn

SOURCE: Final = "7301/1/shapes"
ACK: Final = parse_lsn("0/37F1C5E")
SEEN: Final = parse_lsn("0/37F1CE7")
NOW_MS: Final = 1_790_000_000_000

HOLDER: Final = Holder("orders-open", NOW_MS - 156_000, 1, 137, SEEN, SEEN)
HELD: Final = SourceStatus(SOURCE, ACK, SEEN, 1, 0, NOW_MS - 156_000, (HOLDER,))
IDLE: Final = SourceStatus(SOURCE, SEEN, SEEN, 0, 0, None, ())


def job_status(*sources: SourceStatus, at_ms: int = NOW_MS, **others: Any) -> JobStatus:
    """A job that is ready, with these sources."""
    return replace(JobStatus(at_ms, at_ms - 3_600_000, is_ready=True, sources=sources), **others)


@contextmanager
def status_page(
    answer: Callable[[], bytes], *, code: int = 200, path: str = "/status.json", **headers: str
) -> Iterator[str]:
    """Serve what ``answer`` returns; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer()
            self.send_response(code if self.path == path else 404)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep stderr for what is tested."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def job_page(status: JobStatus | Callable[[], JobStatus]) -> AbstractContextManager[str]:
    """The page of a job with this status, or with what a call returns at each request."""
    return status_page(lambda: json.dumps((status() if callable(status) else status).to_json()).encode())


@contextmanager
def raw_server(reply: bytes = b"", *, byte_every_s: float | None = None) -> Iterator[int]:
    """Accept connections, send ``reply``, and then say nothing and close nothing; yields the port.

    With ``byte_every_s``, also send one more byte each so many seconds, for ever.
    """
    done = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            connections = []
            while not done.wait(byte_every_s or 0):
                try:
                    connection, _ = server.accept()
                    connection.sendall(reply)
                    connections.append(connection)
                except TimeoutError:
                    pass
                for connection in connections if byte_every_s is not None else ():
                    connection.sendall(b"x")
            for connection in connections:
                connection.close()

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            thread.join()
