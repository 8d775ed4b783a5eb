"""``StatusServer``: what a program tells about itself over HTTP, while it runs."""

from collections.abc import Callable

from flushtracker.config.status_config import StatusConfig
from flushtracker.monitoring.http_server import HttpServer
from flushtracker.monitoring.program_status import ProgramStatus
from flushtracker.monitoring.status_app import StatusApp
from flushtracker.monitoring.watch import Watch, now_ms


class StatusServer:
    """Serves what ``read`` returns, from the start of the ``with`` block to its end.

    ``read`` is called in threads of the server, several at once, at any time. It must return what is known without
    waiting for the program: a reference to the last document, not a lock that a batch holds. An exception of ``read``
    makes the program unhealthy and is not raised anywhere.

    Entering raises ``ConfigError`` if nothing can listen at ``status.listen``.
    """

    def __init__(self, config: StatusConfig, read: Callable[[], ProgramStatus]) -> None:
        self._config = config
        self._watch = Watch(read, config.peers)
        self._app = StatusApp(config.listen_host, read, self._watch.to_json, now_ms)
        self._http: HttpServer | None = None

    def __enter__(self) -> "StatusServer":
        self._http = HttpServer(self._config, self._app)
        self._watch.start()
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        if self._http is not None:
            self._http.close()
            self._watch.close()

    @property
    def port(self) -> int:
        """The port that it listens on, which ``status.listen`` may have left open."""
        return self._config.listen_port if self._http is None else self._http.port

    @property
    def url(self) -> str:
        """The page's address, as seen from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._config.listen_host, self._config.listen_host)  # noqa: S104
        return f"http://{StatusConfig(host, self.port).listen}/"
