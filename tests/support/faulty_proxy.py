"""A proxy before an object store that fails as told: ``python -m tests.support.faulty_proxy PORT DELAY``.

PORT is the store's; the proxy prints its own. Each line of its input is a list of faults in JSON, and an empty list
ends all that have not happened; it prints how many those were before, and the requests since the last line. The line
``"release"`` releases what is held, of which it prints requests and answers; ``"held"`` prints its number. A process of
its own, because deltalake holds Python's lock while it waits for an answer. Each request takes DELAY seconds longer.
"""

import http.client
import io
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

RESET: Final = 0
HELD: Final = -1
HALF: Final = -2
_ANSWER: Final = b"<Error><Code>%s</Code><Message>told to fail</Message></Error>"
_CODES: Final = {500: b"InternalError", 503: b"SlowDown", 403: b"RequestTimeTooSkewed", 400: b"ExpiredToken"}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the next ``times`` requests whose method and path ``request`` matches.

    ``takes_effect``: the server gets the request, and only its answer is lost. ``status``: what is answered instead, or
    :data:`RESET` for a connection that is reset; :data:`HALF`: the server's answer, which breaks off; ``None``: all of
    it, after ``delay_s``.

    :data:`HELD`: nothing is answered, and nothing is forwarded before :meth:`FaultyProxy.release`: the request arrives
    late, when its client may have given up long ago. With ``takes_effect`` it is forwarded at once, and never answered.
    """

    request: str
    status: int | None = None
    takes_effect: bool = False
    times: int = 1
    delay_s: float = 0.0


class FaultyProxy:
    """A running proxy, at ``port``."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port = int(self._read())

    def add(self, *faults: Fault) -> None:
        """Have the next requests fail so."""
        self._send([asdict(fault) for fault in faults])

    def left(self) -> int:
        """How many faults have not happened yet; none of them will."""
        left, _ = self._send([])
        return left

    def requests(self) -> list[str]:
        """Method and path of each request since the last call of any method; no fault will happen any more."""
        _, requests = self._send([])
        return requests

    def release(self) -> list[tuple[str, int]]:
        """Have what is held arrive at the server now; returns each request, and what the server answered."""
        return [(request, status) for request, status in self._ask("release")]

    def held(self) -> int:
        """How many requests are held."""
        count: int = self._ask("held")
        return count

    def _send(self, faults: list[dict[str, object]]) -> tuple[int, list[str]]:
        left, requests = self._ask(faults)
        return left, requests

    def _ask(self, line: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def faulty_proxy(
    server_port: int, delay_s: float = 0.0, *, module: str = "tests.support.faulty_proxy"
) -> Iterator[FaultyProxy]:
    """A proxy before the server at ``server_port`` of this machine, which adds ``delay_s`` to each request.

    ``module``: one that serves with a :class:`Handler` of its own.
    """
    command = [sys.executable, "-m", module, str(server_port), str(delay_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield FaultyProxy(process)
        finally:
            process.kill()


class _Held:
    """Requests that wait for a release, and what the server then answered to them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released = self._waiting = 0
        self._late: list[tuple[str, int]] = []

    @contextmanager
    def until_released(self) -> Iterator[None]:
        """Wait before the block; what releases waits for its end."""
        with self._changed:
            self._waiting += 1
            before = self._released
            self._changed.wait_for(lambda: self._released > before)
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def arrived(self, request: str, status: int) -> None:
        with self._changed:
            self._late.append((request, status))

    def held(self) -> int:
        with self._changed:
            return self._waiting

    def release(self) -> list[tuple[str, int]]:
        with self._changed:
            self._released += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting)
            late, self._late = self._late, []
        return late


class Handler(BaseHTTPRequestHandler):
    """Forwards each request with its headers, which a signature may cover."""

    protocol_version = "HTTP/1.1"
    # Headers and content in one packet: the client's delayed ACK would cost 40 ms.
    wbufsize = -1
    server_port: ClassVar[int]
    delay_s: ClassVar[float]
    faults: ClassVar[list[Fault]] = []
    requests: ClassVar[list[str]] = []
    lock: ClassVar = threading.Lock()
    held: ClassVar = _Held()

    def _handle(self) -> None:
        body = self._body()
        fault = self._fault()
        time.sleep(self.delay_s + (0 if fault is None else fault.delay_s))
        if fault is not None and fault.status == HELD:
            self._hold(body, takes_effect=fault.takes_effect)
            return
        is_answered = fault is None or fault.status in {None, HALF}
        answer = self._forward(body) if is_answered or (fault is not None and fault.takes_effect) else None
        if fault is None or fault.status is None:
            assert answer is not None
            self._answer(*answer)
        elif fault.status == HALF:
            assert answer is not None
            self._break_off(*answer)
        elif fault.status == RESET:
            self._reset()
        else:
            content = _ANSWER % _CODES[fault.status]
            self._answer(fault.status, [("Content-Length", str(len(content)))], content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _hold(self, body: bytes, *, takes_effect: bool) -> None:
        if takes_effect:
            self._forward(body)
        with self.held.until_released():
            answer = None if takes_effect else self._forward(body)
            if answer is not None:
                self.held.arrived(f"{self.command} {self.path}", answer[0])
        # The client may have gone.
        with suppress(OSError):
            if answer is None:
                self._reset()
            else:
                self._answer(*answer)

    def handle_expect_100(self) -> bool:
        """Have the client send its content; otherwise it would first wait for three seconds."""
        is_handled = super().handle_expect_100()
        self.wfile.flush()
        return is_handled

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answered(self, content: bytes) -> bytes:
        """What the client gets of the content of the server's answer: here all of it, as it is."""
        return content

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        del self.headers["Transfer-Encoding"]
        self.headers["Content-Length"] = str(len(body))
        return body

    def _fault(self) -> Fault | None:
        request = f"{self.command} {self.path}"
        with self.lock:
            self.requests.append(request)
            for number, fault in enumerate(self.faults):
                if re.search(fault.request, request):
                    del self.faults[number]
                    return fault
        return None

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"expect", "connection"}:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = self.answered(answer.read())
        finally:
            connection.close()
        headers = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}
        ]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        return answer.status, headers if length is None else [*headers, ("Content-Length", length)], content

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            # The names have no case, and a client must not go by that of its own request.
            self.send_header(name.title(), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _break_off(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        """Send half of the content, or if there is none, half of the headers."""
        client, self.wfile = self.wfile, io.BytesIO()
        self._answer(status, headers, content)
        whole, self.wfile = self.wfile.getvalue(), client
        missing = len(content) if content and self.command != "HEAD" else len(whole)
        client.write(whole[: len(whole) - max(missing // 2, 1)])
        client.flush()
        self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def main(handler: type[Handler] = Handler) -> None:
    """Serve, and read faults from the input until it ends."""
    handler.server_port, handler.delay_s = int(sys.argv[1]), float(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)  # noqa: T201
    for line in sys.stdin:
        asked = json.loads(line)
        if asked in ("release", "held"):
            print(json.dumps(getattr(handler.held, asked)()), flush=True)  # noqa: T201
            continue
        faults = [Fault(**{**fields, "times": 1}) for fields in asked for _ in range(fields["times"])]
        with handler.lock:
            left = len(handler.faults)
            handler.faults = [*handler.faults, *faults] if faults else []
            requests, handler.requests[:] = [*handler.requests], []
        print(json.dumps([left, requests]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
