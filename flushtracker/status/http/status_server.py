"""``StatusServer``: serves the status of a running program over HTTP."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from flushtracker.config.status_config import StatusConfig
from flushtracker.status.http.http_server import HttpServer
from flushtracker.status.http.page_data import PageData
from flushtracker.status.http.status_app import StatusApp
from flushtracker.status.program_status import ProgramStatus


class StatusServer:
    """Serves what ``read`` returns, from the start of the ``with`` block to its end.

    Several threads of the server may call ``read`` at once. It must not wait for the program, for example for a lock
    held during a batch. If it raises, the program counts as unhealthy, and the exception is dropped.

    Entering raises ``ConfigError`` if nothing can listen at ``status.listen``.
    """

    def __init__(self, config: StatusConfig, read: Callable[[], ProgramStatus]) -> None:
        self._config = config
        self._page_data = PageData(read, config.peers)
        self._app = StatusApp(config.listen_host, read, self._page_data.to_json)
        self._http: HttpServer | None = None

    def __enter__(self) -> "StatusServer":
        self._http = HttpServer(self._config, self._app)
        self._page_data.start()
        return self

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        if self._http is not None:
            self._http.close()
            self._page_data.close()

    @property
    def port(self) -> int:
        """The port that it listens on; ``status.listen`` may leave it open."""
        return self._config.listen_port if self._http is None else self._http.port

    @property
    def url(self) -> str:
        return f"{StatusConfig(self._config.listen_host, self.port).own_url}/"


def serving(config: StatusConfig | None, read: Callable[[], ProgramStatus]) -> AbstractContextManager[object]:
    """A :class:`StatusServer`, or nothing for a program without ``status`` in its configuration."""
    return nullcontext() if config is None else StatusServer(config, read)
