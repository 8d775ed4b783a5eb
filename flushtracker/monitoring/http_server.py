"""``HttpServer``: a small WSGI server in threads of its own, which no client can use to delay the program.

waitress reads requests and sends responses in one thread, without blocking, and a few others make the responses. What
clients can occupy is bounded: the size of a request, how long a connection may be silent, how long it may take for a
request and its response, and how many there are. After each response its thread rests, so that one who asks in a tight
loop leaves the interpreter to the program.
"""

import logging
import socket
import time
from collections.abc import Iterable
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from waitress import wasyncore
from waitress.server import create_server

from flushtracker.config.status_config import StatusConfig
from flushtracker.errors import ConfigError
from flushtracker.monitoring.http_channel import HttpChannel

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_THREADS: Final = 2
_CONNECTIONS: Final = 256
"""Each has a file descriptor, and a process often may have no more than 1024."""
_SILENCE_S: Final = 10
"""A connection without any progress for this long is closed."""
_REQUEST_S: Final = 15
"""A connection is closed this long after it was opened or answered, if no whole request has come by then."""
_REQUEST_BYTES: Final = 16_384
_BACKLOG: Final = 512
_REST: Final = 4
_LONGEST_REST_S: Final = 0.05
"""A thread rests four times as long as it took for a response, at most this long."""
_LOOP_S: Final = 0.5
_STOP_S: Final = 2
LIMITS: Final[dict[str, Any]] = {
    "threads": _THREADS,
    "connection_limit": _CONNECTIONS,
    "channel_timeout": _SILENCE_S,
    "cleanup_interval": 1,
    "max_request_header_size": _REQUEST_BYTES,
    "max_request_body_size": _REQUEST_BYTES,
    "backlog": _BACKLOG,
    "ident": "",  # No Server header.
    "server_name": "status",
    "log_socket_errors": False,
}
"""What waitress calls adjustments."""


class HttpServer:
    """Serves ``app`` at the address of ``config`` until :meth:`close`.

    Raises:
        ConfigError: nothing can listen at this address; the message names ``status.listen``.
    """

    def __init__(self, config: StatusConfig, app: "WSGIApplication") -> None:
        self._stopped = False
        self._waking = Lock()
        # Its warnings are about clients, such as a cut connection. They do not belong into the program's log.
        logging.getLogger("waitress").setLevel(logging.CRITICAL)
        listener = _listen(config)
        self.port = int(listener.getsockname()[1])
        self._map: dict[int, Any] = {}
        self._server: Any = create_server(_resting(app), self._map, sockets=[listener], **LIMITS)
        self._thread = Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection and stop the threads, whatever the clients do."""
        with self._waking:
            if not self._stopped:
                self._stopped = True
                self._server.pull_trigger()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        self._server.channel_class = HttpChannel
        while not self._stopped:
            # The programs may have more than 1024 files open, which select() does not support.
            wasyncore.loop(timeout=_LOOP_S, use_poll=True, map=self._map, count=1)
            for channel in list(self._server.active_channels.values()):
                channel.close_if_late(_REQUEST_S)
        self._stop_serving()

    def _stop_serving(self) -> None:
        """A thread that still answers keeps its pipe: it would write into whatever file has got the number since."""
        threads, trigger = self._server.task_dispatcher, self._server.trigger
        threads.shutdown(timeout=_STOP_S / 2)
        for channel in list(self._map.values()):
            if channel is not trigger:
                wasyncore.dispatcher.close(channel)
        if not threads.threads:
            with self._waking:
                trigger.close()


def _resting(app: "WSGIApplication") -> "WSGIApplication":
    def rested(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        started = time.monotonic()
        try:
            return app(environ, start_response)
        finally:
            time.sleep(min((time.monotonic() - started) * _REST, _LONGEST_REST_S))

    return rested


def _listen(config: StatusConfig) -> socket.socket:
    try:
        found = socket.getaddrinfo(config.listen_host, config.listen_port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        both = config.listen_host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise ConfigError(
            f"status.listen is {config.listen}, where nothing can be served: {reason}; "
            f"stop what listens there, or name another address"
        ) from error
    # Accepted connections inherit it: a client that takes nothing of its response is cut off, too.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LIMITS["channel_timeout"] * 1_000)
    return listener
