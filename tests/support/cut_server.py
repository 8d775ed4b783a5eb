"""``CutReaders``: servers and clients of HTTP in a :class:`~tests.support.cut_world.CutWorld`.

All of the server but its threads is the production code: what it looks at, reads and keeps. Its tables are the model's,
and other programs take steps while it reads them. Clients ask any server, which may be behind another one, and some get
transactions from one that shows them before the log has them.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TypeVar

import pyarrow as pa

from flushtracker.errors import ConfigError, PositionError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.serve.body import Body, Page, PageFile, join
from flushtracker.serve.handle import Handle
from flushtracker.serve.messages import item_messages, row_messages
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.parts import Parts
from flushtracker.serve.poller import Poller
from flushtracker.serve.precedence import Precedence
from flushtracker.serve.reads import Check, LogReads
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
from flushtracker.serve.single_flight import Flight, SingleFlight
from flushtracker.serve.state_rows import StateRows
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.found_shape import FoundShape, require_readable
from tests.support.cut_clients import CutClient, combined
from tests.support.cut_world import SOURCE, TABLE_OF, CutWorld, ShapeLog
from tests.support.serve_client import Server, config_of

T = TypeVar("T")
_MOST = 1 << 62
_ENOUGH = 10


class CutReaders:
    """Clients of some shapes of the world, and their servers; ``compared`` counts what was combined of several.

    ``ahead``: how often a client that asks was shown transactions before the log has them, which ``shown`` counts.
    """

    def __init__(self, world: CutWorld, servers: int = 2, ahead: float = 0.0) -> None:
        self._world = world
        self._ahead = ahead
        self._restores = world.restores
        self._entries: dict[str, ShapeEntry] = {}
        """For each digest in a handle, the entry of the incarnation that it stands for."""
        self._servers = [_SteppedServer(_WorldReads(world, self._entries)) for _ in range(servers)]
        self._clients: list[CutClient] = []
        while len(self._clients) < world.rng.randint(2, 3):
            self._clients.append(self._new_client())
        self.compared = self.shown = 0

    def _new_client(self) -> CutClient:
        rng = self._world.rng
        free = TABLE_OF.keys() - {each.params["shape"] for each in self._clients}
        current = self._world.current()
        chosen = sorted(each for each in free if each in current and current[each].removed_at is None) or sorted(free)
        return CutClient({"shape": rng.choice(chosen), "cuts": rng.choice(["true", "false"])})

    async def step(self) -> None:
        """A client asks a server, which may have looked just before, and all combine what they have."""
        rng = self._world.rng
        number, server = rng.randrange(len(self._clients)), rng.choice(self._servers)
        if rng.random() < 0.5:
            server.look()
        if rng.random() < 0.02:
            self._clients[number] = self._new_client()
        client = self._clients[number]
        if client.is_up_to_date and client.first >= 0 and rng.random() < self._ahead:
            waiting = self._world.published(self._entry_of(client), client.tx)
            shown = waiting[: rng.randint(0, len(waiting))]
            client.show(shown)
            self.shown += len(shown)
        await self._ask(number, server)
        self._check_shown(self._clients[number])
        self._compare()

    def _entry_of(self, client: CutClient) -> ShapeEntry:
        return self._entries[Handle.parse(str(client.handle)).digest]

    def _check_shown(self, client: CutClient) -> None:
        """A copy never lacks what the client was shown, unless the log is an older copy since."""
        if self._restores != self._world.restores or self._world.begin:
            self._restores = self._world.restores
            for each in self._clients:
                each.shown = frozenset()
        if client.is_up_to_date:
            rows = frozenset(client.rows)
            assert rows >= client.shown, f"client of {client.params['shape']} lost {sorted(client.shown - rows)}"
            client.shown = rows

    async def _ask(self, number: int, server: "_SteppedServer") -> int:
        client, is_live = self._clients[number], self._world.rng.random() < 0.4
        if is_live and client.first >= 0 and client.is_up_to_date and self._world.rng.random() < 0.5:
            status = (await client.events(server)).status
        else:
            status = (await client.step(server, live=is_live)).status
        assert status in {200, 404, 409, 410, 503}
        if status in {404, 410}:
            # It stops, and another one begins.
            self._clients[number] = self._new_client()
        return status

    def _compare(self) -> None:
        found = combined(self._clients)
        # Capture that has lost entries has lost changes, too.
        if found is None or self._world.begin:
            return
        lsn, shapes = found
        self.compared += 1
        for client in self._clients:
            shape_id, rows = client.params["shape"], {int(each) for each in shapes[client.params["shape"]]}
            expected = self._world.rows_at(shape_id, self._entry_of(client), lsn)
            assert rows == expected, f"at {lsn}, client of {shape_id} has {sorted(rows)}, not {sorted(expected)}"

    async def rest(self) -> None:
        """The world is at rest: whoever gets answers is up to date soon, as of the last transaction."""
        for server in self._servers:
            server.look()
        for number in range(len(self._clients)):
            statuses = [await self._ask(number, self._servers[0]) for _ in range(_ENOUGH)]
            if statuses[-1] == 200:
                assert self._clients[number].is_up_to_date
                assert self._clients[number].lsn in {-1, max(self._world.history)}
        self._compare()


class _SteppedServer(Server):
    """A server that looks when it is told to, or a request needs a fresh look."""

    def __init__(self, reads: "_WorldReads") -> None:
        super().__init__(config_of("unused"), 0)
        poller, flights = _SteppedWatch(reads), _InlineFlights("inline", 1)
        pages, states = self.served.parts.pages, self.served.parts.states
        parts = Parts(poller, reads, flights, flights, flights, flights, Precedence(bool), pages, states)
        self.replace(parts, live_s=0.0)
        self.look = poller.look


class _SteppedWatch(Poller):
    def __init__(self, reads: "_WorldReads") -> None:
        super().__init__(reads.open, 1.0)
        self._tables = reads.open()

    def look(self) -> None:
        self._publish(self._poll(self._tables, self._now_s()))

    async def _fresh_poll(self) -> None:
        self.look()


class _InlineFlights(SingleFlight):
    """Reads on the event loop."""

    async def share(
        self,
        key: Hashable,  # noqa: ARG002
        read: Callable[[Flight[T]], T],
        done: Callable[[T], None],
        *,
        group: Hashable = None,
    ) -> T:
        flight = Flight[T](group)
        flight.begin(done)
        result = read(flight)
        done(result)
        return result


class _WorldTables(OpenTables):
    """The model's tables, as they are at each look."""

    def __init__(self, world: CutWorld, entries: dict[str, ShapeEntry]) -> None:
        self._world = world
        self._by_digest = entries
        self.table_id = "log"
        self._version = 0
        self._cut: int | None = None
        self._logs: Mapping[str, ShapeLog] = {}
        self._entries: Mapping[str, ShapeEntry] = {}

    def refresh(self) -> Registry:
        world = self._world
        registry = world.current() if world.faults.registry_first else None
        world.some_steps(200 if world.faults.registry_first else 3)
        self._version = world.next_version()
        self._cut, self._logs = world.cut, world.copied_logs()
        world.some_steps()
        self._entries = world.current() if registry is None else registry
        return Registry.of(self._entries.values())

    @property
    def version(self) -> int:
        return self._version

    def look_up(self, shape_ids: Collection[str]) -> None:
        pass

    def seen(self, shape_id: str) -> SeenShape:
        log, entry = self._logs.get(shape_id, ShapeLog()), self._entries.get(shape_id)
        if entry is None:
            raise ConfigError("there is no such shape")
        if entry.removed_at is not None:
            require_readable(entry, even_if_ended=False, has_log=shape_id in self._logs)
        last = max(log.commits, default=None)
        found = FoundShape(self._version, SOURCE, shape_id, last, log.snapshot, entry, None)
        facts = ShapeFacts.of(found, self.table_id)
        self._by_digest[facts.digest] = entry
        return SeenShape(found, facts, self._cut)

    def forget(self, kept: Iterable[str]) -> None:
        pass

    def log_of(self, shape_id: str) -> ShapeLog:
        return self._logs.get(shape_id, ShapeLog())


class _WorldReads(LogReads):
    """Reads of the model's tables as they are by then."""

    def __init__(self, world: CutWorld, entries: dict[str, ShapeEntry]) -> None:
        self._world = world
        self._entries = entries

    def open(self) -> _WorldTables:
        return _WorldTables(self._world, self._entries)

    def _newest(self, seen: SeenShape) -> tuple[SeenShape, ShapeLog]:
        tables = self.open()
        tables.refresh()
        return tables.seen(seen.shape_id), tables.log_of(seen.shape_id)

    def log_pages(self, seen: SeenShape, position: Position, check: Check, *, is_proven: bool) -> list[Page]:
        """Some transactions in each page, of which there may be more."""
        check()
        now, log = self._newest(seen)
        if now.facts.digest != seen.facts.digest or not _is_continued(now.found, position):
            raise RefetchError
        tx = position.tx_offset
        if not (is_proven or tx in log.commits or now.proves(tx)):
            raise RefetchError
        pages = list[Page]()
        waiting = sorted(each for each in log.counted() if each > tx)
        while len(waiting) > 2 and self._world.rng.random() < 0.3:
            taken, waiting = waiting[:1], waiting[1:]
            pages.append(Page(_body(taken, now), taken[-1]))
        if not pages or self._world.rng.random() < 0.7:
            pages.append(Page(_body(waiting, now), max(now.tx, tx), 0, is_end=True, version=now.found.version))
        return pages

    def state(
        self,
        seen: SeenShape,
        begun: Handle | None,
        at: int | None,
        check: Check,
        show: Callable[[StateRows], None],  # noqa: ARG002
    ) -> StateRows:
        """The rows, all in one page."""
        check()
        assert begun is None
        assert at is None
        now, log = self._newest(seen)
        now.found.require_started()
        now.found.require_snapshot()
        rows = sorted(log.at(_MOST))
        made = pa.table({"key": [str(tx) for tx in rows], "value": [f'{{"id":"{tx}"}}' for tx in rows]})
        state = StateRows(now.handle, now.facts, now.tx, PageFile(), now.found.version)
        with state.writing():
            state.add(row_messages(made, now.facts.rendering))
        return state


def _is_continued(shape: FoundShape, after: Position) -> bool:
    """Whether the log goes on after a position without a difference, by the rules of ``ShapeFinder.find_log``."""
    snapshot = shape.snapshot
    try:
        shape.require_reached(after)
        if snapshot is None or (after.attempt == snapshot.attempt and after.tx_offset >= snapshot.begins_at):
            return True
        shape.require_followed(after)
    except PositionError:
        return False
    return snapshot.is_fold and not shape.may_be_before(after)


def _body(transactions: Iterable[int], now: SeenShape) -> Body:
    messages = [
        message
        for tx in transactions
        for message in item_messages(tx, tx, [("insert", str(tx), f'{{"id":"{tx}"}}', None)], now.facts.rendering)
    ]
    return Body.of(join(messages))
