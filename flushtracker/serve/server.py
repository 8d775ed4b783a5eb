"""``run_server``: the HTTP server of one process, from its listening socket to its last answer."""

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from flushtracker.config.serve_config import HttpConfig, ServeConfig, TailConfig
from flushtracker.config.status_config import StatusConfig
from flushtracker.errors import ConfigError
from flushtracker.process.program import STOP_SIGNALS
from flushtracker.serve.app import ServeApp
from flushtracker.serve.cache import MAX_CACHED_FILES, PageCache, StateCache
from flushtracker.serve.http_answers import STALLED_S
from flushtracker.serve.on_demand.on_demand import OnDemand
from flushtracker.serve.parts import Parts
from flushtracker.serve.poller import Poller
from flushtracker.serve.precedence import Precedence
from flushtracker.serve.rate_limited_log import RateLimitedLog
from flushtracker.serve.reads import LogReads
from flushtracker.serve.sent_files import MOST_FILES
from flushtracker.serve.shape_answers import ShapeAnswers
from flushtracker.serve.single_flight import SingleFlight
from flushtracker.serve.table_view import TableView
from flushtracker.serve.tail.tail_pages import TailPages
from flushtracker.serve.tail.tails import Tails
from flushtracker.status.http.http_connection import HEADER_BYTES, SPARE, HttpConnection
from flushtracker.status.http.listener import open_listener

if TYPE_CHECKING:
    from flushtracker.serve.tail.tail_reader import TailReader, Wake

logger = logging.getLogger(__name__)
_log = RateLimitedLog(logger)

_BACKLOG: Final = 2048
"""Connections queued by the kernel until they are accepted."""
_AT_ONCE: Final = 100
"""Connections accepted in one turn of the event loop; it takes four turns until one is known and may be closed."""
_UNSENT_BYTES: Final = 16 << 10
"""The part of an answer that the kernel buffers beyond what is in flight; a client that is not reading takes no
more.
"""
_KEEP_ALIVE_S: Final = 75
"""Longer than proxies keep connections, so that they close them first."""
_STOP_S: Final = 10
_OTHER_FILES: Final = SPARE + 5 * _AT_ONCE + MOST_FILES + 2 * MAX_CACHED_FILES + 100
"""File descriptors besides those of served connections: other connections, answers, tables, libraries."""
_MOST_DEFINITIONS: Final = 200
"""Definitions queued for parsing, each of which takes some milliseconds."""
_KEPT_SUBSET_S: Final = 10.0
"""How long a subset is still read whose clients were told to ask again."""
_SWITCH_S: Final = 0.0005
"""How long a thread that computes goes on while the event loop waits for it."""
_STATES_S: Final = 30.0
"""New clients start with rows up to this old, and continue with the log."""


class Served:
    """The parts of a running server; :attr:`parts` and :attr:`app` are for its status."""

    def __init__(self, config: ServeConfig) -> None:
        reads = LogReads(config.sink, config.source)
        disk = config.cache.disk_bytes // 2
        pages = PageCache(config.cache.memory_bytes, disk)
        tails = None if config.tail is None else Tails(config.tail.memory_bytes, lambda: poller.rounds.holding)
        tail = None if tails is None else TailPages(tails, pages)
        on_demand = OnDemand.of(config.on_demand, config.on_demand_definitions) if config.on_demand else None

        def forget(view: TableView) -> None:
            for each in (tail, on_demand):
                if each is not None:
                    each.on_view(view)

        poller = Poller(reads.open, config.poll_ms / 1_000, config.source, published=forget)
        self.parts = Parts(
            poller=poller,
            reads=reads,
            log_flights=SingleFlight("logs", config.reads, spare=config.reads),
            row_flights=SingleFlight("rows", config.reads, spare=config.reads),
            definition_flights=SingleFlight("definitions", 1, _MOST_DEFINITIONS),
            subset_flights=SingleFlight("subsets", config.reads, spare=config.reads, keep_s=_KEPT_SUBSET_S),
            precedence=Precedence(lambda: poller.is_busy),
            pages=pages,
            states=StateCache(disk, _STATES_S),
            tail_pages=tail,
            on_demand=on_demand,
            subset_rules=config.subsets,
        )
        self.tail_reader: TailReader | None = None
        if config.tail is not None and tail is not None:
            self.tail_reader = _tail_reader(config.tail, tail.tails, poller.wake)
        self.source = config.source
        self.answers = ShapeAnswers(self.parts, config.source)
        self.app = ServeApp(config.http, self.answers, self.parts.poller, config.cache.disk_bytes)
        self.connections: Callable[[], int] = int

    def start(self) -> None:
        """Start reading; called on the event loop."""
        self.parts.poller.start()
        if self.tail_reader is not None:
            self.tail_reader.start()

    def close(self) -> None:
        """End all waits; running threads are abandoned."""
        self.parts.poller.close()
        if self.tail_reader is not None:
            self.tail_reader.close()
        for flights in self.parts.flights:
            flights.close()


def _tail_reader(config: TailConfig, tails: Tails, wake: "Wake") -> "TailReader":
    """The only part that needs a client of Kafka."""
    try:
        from flushtracker.serve.tail.tail_reader import TailReader  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tail needs {error.name}, which is not installed; run: pip install 'flushtracker[serve,writer]'"
        ) from error
    return TailReader(config, tails, wake)


class _Server(uvicorn.Server):
    """Leaves signal handling to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(config: ServeConfig, served: Served, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``started`` is called with the address once requests are answered.

    Raises:
        ConfigError: nothing can listen at ``serve.listen``.
    """
    # Its warnings are about clients, and the application logs its errors.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    address = StatusConfig(config.http.listen_host, config.http.listen_port)
    listener = open_listener(address, "serve.listen", backlog=_BACKLOG, stalled_s=STALLED_S)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        # Accepted connections inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    port = listener.getsockname()[1]
    # Each call of the loop to the system lets another thread run, and then waits so long for it: 5 ms are as long as a
    # dozen answers take.
    sys.setswitchinterval(_SWITCH_S)
    # A full collection would search all that has been imported, which takes 0.1 s, each second with a thousand clients.
    gc.freeze()
    asyncio.run(_serve(config, served, listener, lambda: started(_url(config.http, port))))


async def _serve(config: ServeConfig, served: Served, listener: socket.socket, started: Callable[[], None]) -> None:
    limit = _connection_limit(config.http.connections)
    protocol: Any = type("LimitedConnection", (HttpConnection,), {"limit": limit})
    server = _Server(
        uvicorn.Config(
            served.app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
            h11_max_incomplete_event_size=HEADER_BYTES,
            backlog=_AT_ONCE,
        )
    )
    served.connections = lambda: len(server.server_state.connections)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_error)

    def stop() -> None:
        # Waiting clients are answered now, and contact another server next.
        served.parts.poller.close()
        server.should_exit = True

    for number in STOP_SIGNALS:
        # A handler of the loop would replace the one that ends a hung process (exit_if_hung).
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
    served.start()
    watcher = asyncio.create_task(_call_when_started(server, listener, started))
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        served.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _call_when_started(server: uvicorn.Server, listener: socket.socket, started: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    # asyncio has set it to the number that it accepts at once.
    listener.listen(_BACKLOG)
    started()


def _log_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error outside of requests; clients may cause some, for example with too many open files."""
    error = context.get("exception")
    is_of_system = isinstance(error, OSError)
    reason = f"{context['message']}: {error}" if is_of_system else context["message"]
    _log(logging.ERROR, "event loop failed reason=%s", reason, exc_info=None if is_of_system else error)


def _connection_limit(wanted: int) -> int:
    """Raise the limit of open files as far as possible; allow fewer connections if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft - _OTHER_FILES), 1)
    if limit < wanted:
        logger.warning("connections are limited by open files limit=%s wanted=%s open_files=%s", limit, wanted, soft)
    return limit


def _url(config: HttpConfig, port: int) -> str:
    return f"{StatusConfig(config.listen_host, port).own_url}/v1/shape"
