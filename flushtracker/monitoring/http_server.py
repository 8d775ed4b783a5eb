"""``HttpServer``: a small WSGI server in its own threads. No client can use it to delay the program.

In waitress, one thread reads requests and sends responses without blocking, and a few others compute the responses. All
that clients can occupy is limited: the number of connections, the size of a request, the time that a connection may be
silent, and the time for a request and for its response. After each response the thread sleeps, so that a client which
asks in a tight loop leaves the interpreter to the program.

:func:`is_meant_for` is the check of the ``Host`` header.
"""

import logging
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import create_server

from flushtracker.config.status_config import StatusConfig
from flushtracker.monitoring.listener import open_listener

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_THREADS: Final = 2
_CONNECTIONS: Final = 256
"""Each has a file descriptor, and a process often may have no more than 1024."""
_SILENCE_S: Final = 10
"""A connection without progress for this long is closed."""
_REQUEST_S: Final = 15
"""A connection is closed this long after it was opened or answered, if no complete request has arrived by then."""
_REQUEST_BYTES: Final = 16_384
_BACKLOG: Final = 512
_SLEEP_FACTOR: Final = 4
_LONGEST_SLEEP_S: Final = 0.05
"""A thread sleeps four times as long as it took for a response, at most this long."""
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
_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")
"""The value of a ``Host`` header: an IPv6 address in brackets, or a name; then a port."""


class HttpServer:
    """Serves ``app`` at the address of ``config`` until :meth:`close`.

    Raises:
        ConfigError: nothing can listen at this address; the message names ``status.listen``.
    """

    def __init__(self, config: StatusConfig, app: "WSGIApplication") -> None:
        self._stopped = False
        self._waking = Lock()
        # Its warnings are about clients, such as a cut connection. They do not belong in the program's log.
        logging.getLogger("waitress").setLevel(logging.CRITICAL)
        listener = open_listener(config, "status.listen", backlog=_BACKLOG, stalled_s=_SILENCE_S)
        self.port = int(listener.getsockname()[1])
        self._map: dict[int, Any] = {}
        self._server: Any = create_server(_throttled(app), self._map, sockets=[listener], **LIMITS)
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
        self._server.channel_class = _Channel
        while not self._stopped:
            # The program may have more than 1024 open files, which select() does not support.
            wasyncore.loop(timeout=_LOOP_S, use_poll=True, map=self._map, count=1)
            for channel in list(self._server.active_channels.values()):
                channel.close_if_late(_REQUEST_S)
        self._stop_serving()

    def _stop_serving(self) -> None:
        # A thread that still answers keeps its pipe: otherwise it would write to whatever file gets its number.
        threads, trigger = self._server.task_dispatcher, self._server.trigger
        threads.shutdown(timeout=_STOP_S / 2)
        for channel in list(self._map.values()):
            if channel is not trigger:
                wasyncore.dispatcher.close(channel)
        if not threads.threads:
            with self._waking:
                trigger.close()


class _Channel(HTTPChannel):
    """A connection that is closed if its client is too slow, however busy.

    For waitress each byte is progress. A client that sends its request, or reads its response, byte by byte would keep
    its connection forever, and a few hundred such clients would use up all connections.
    """

    def __init__(self, *arguments: Any, **adjustments: Any) -> None:
        self.waiting_since = time.monotonic()
        """When it was opened, or its last response was computed."""
        super().__init__(*arguments, **adjustments)

    def service(self) -> None:
        """Answer a request."""
        super().service()
        self.waiting_since = time.monotonic()

    def close_if_late(self, limit_s: float) -> None:
        """Close it if the client has neither sent a complete request nor read its response within ``limit_s``.

        Called by the thread of the server's loop. A request that is being answered, or is queued, is not late.
        """
        if not self.requests and time.monotonic() - self.waiting_since > limit_s:
            self.handle_close()


def _throttled(app: "WSGIApplication") -> "WSGIApplication":
    def throttled(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        started = time.monotonic()
        try:
            return app(environ, start_response)
        finally:
            time.sleep(min((time.monotonic() - started) * _SLEEP_FACTOR, _LONGEST_SLEEP_S))

    return throttled


def is_meant_for(listen_host: str, host: str | None) -> bool:
    """Whether a server that listens on ``listen_host`` answers a request with this ``Host`` header.

    This protects against DNS rebinding. A page of any site may let its own name resolve to 127.0.0.1. For the browser
    that is still the page's site, so it may read what a server on the loopback address returns; but the browser sends
    the site's name as ``Host``. So a server on the loopback address answers only to ``localhost``, to addresses, and to
    the name under which it listens. No browser omits the header.

    >>> [is_meant_for("127.0.0.1", host) for host in ("localhost:9464", "[::1]:9464", "site.example:9464")]
    [True, True, False]
    >>> is_meant_for("0.0.0.0", "site.example:9464")
    True
    """
    if host is None or not (listen_host == "localhost" or _is_loopback(listen_host)):
        return True
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found[1] or found[2] or "").lower()
    return name in ("localhost", listen_host.lower()) or _is_address(name)


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False
