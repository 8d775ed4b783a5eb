"""``TailWorld``: servers with tails of a random source, and clients that go from one to another.

The oracle is the list of all transactions. What a tail shows a client must be exactly those after its place that are
not in the snapshot it started from, whole, up to where the tail says. Then the client has all up to there, once.

A server reads the topic at its own pace, and may lose any events of it. It looks at the log when it likes to, so what
it knows of the log, the cut and the registry may be old.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from flushtracker.errors import PositionError
from flushtracker.serve.handle import Handle
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.tail.tails import TailPage, Tails
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from tests.support.shape_log_rows import SOURCE
from tests.support.tail_source import LARGE, SHAPES, TailSource, Transaction

MEMORY_BYTES: Final = 15_000
PAGE_BYTES: Final = 3_000
_CHECKED: Final = 5
"""The steps between checks of the invariants, which take longer than a step."""


@dataclass
class TailClient:
    """``snapshot`` is what it started from, and ``has`` the transactions in its copy."""

    shape_id: str
    cuts: bool
    handle: Handle | None = None
    place: int = 0
    snapshot: ShapeSnapshot | None = None
    has: list[int] = field(default_factory=list)
    incarnation: int = 0
    schema: int = -1
    shown: int = 0


@dataclass
class TailServer:
    tails: Tails
    read: int = 0
    views: dict[str, SeenShape] = field(default_factory=dict)


class TailWorld(TailSource):
    """``play`` raises ``AssertionError`` at the first wrong answer."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.now_s = 0
        self.servers = [TailServer(Tails(MEMORY_BYTES)) for _ in range(3)]
        self.clients = [TailClient(shape_id, cuts=number % 2 == 1) for shape_id in SHAPES for number in range(5)]

    def play(self, steps: int) -> Counter[str]:
        for number in range(steps):
            self.step(number)
        return self.counts

    @cached_property
    def _actions(self) -> dict[Callable[[], None], float]:
        return {
            self.commit: 6,
            self.publish: 12,
            self.connect: 2,
            self.write: 2,
            self.note_cut: 1,
            self.take_snapshot: 0.8,
            self.fold: 1.2,
            self.resync: 0.1,
            self.alter: 0.06,
            self.register: 4,
            self.read_topic: 16,
            self.look: 2,
            self.lose: 2,
            self.be_away: 1,
            self.pass_time: 0.1,
            self.request: 40,
        }

    def step(self, number: int) -> None:
        (action,) = self.rng.choices([*self._actions], [*self._actions.values()])
        action()
        if number % _CHECKED == 0:
            for server in self.servers:
                server.tails.check_invariants()

    # Servers.

    def read_topic(self) -> None:
        server = self.rng.choice(self.servers)
        for _ in range(min(self.rng.randint(1, 8), len(self.topic) - server.read)):
            shape_id, event = self.topic[server.read]
            server.tails.add((SOURCE, shape_id), event)
            server.read += 1

    def lose(self) -> None:
        """Events are lost, one cannot be read, or all is forgotten."""
        server = self.rng.choice(self.servers)
        how = self.rng.choice(["lost", "lost", "lost", "unreadable", "forgotten"])
        if how == "lost":
            server.read = min(server.read + self.rng.randint(1, 2), len(self.topic))
        elif how == "unreadable" and server.read < len(self.topic):
            server.tails.forget((SOURCE, self.topic[server.read][0]))
            server.read += 1
        elif how == "forgotten":
            server.tails.forget_all()
            server.read = len(self.topic)

    def be_away(self) -> None:
        """While a server does not reach Kafka, the log gets all there is, and capture connects again after that."""
        server = self.rng.choice(self.servers)
        for _ in range(self.rng.randint(1, 6)):
            self.rng.choice([self.commit, self.commit, self.commit, self.take_snapshot, self.resync])()
        for _ in range(self.rng.randint(1, 12)):
            self.publish()
        server.read = len(self.topic)
        self.written = self.published
        self.connect()

    def look(self) -> None:
        server = self.rng.choice(self.servers)
        for shape_id in SHAPES:
            if (view := self.seen(shape_id)) is not None:
                server.views[shape_id] = view

    def pass_time(self) -> None:
        self.now_s += self.rng.choice([10, 130])
        for server in self.servers:
            server.tails.expire(self.now_s)

    # Clients.

    def request(self) -> None:
        client, server = self.rng.choice(self.clients), self.rng.choice(self.servers)
        server.tails.ask((SOURCE, client.shape_id), self.now_s)
        view, handle = server.views.get(client.shape_id), client.handle
        if view is None or handle is None or handle.digest != view.facts.digest:
            view = self.seen(client.shape_id)
            if view is not None and (handle is None or handle.digest != view.facts.digest):
                self.begin(client, view)
                return
        if view is None or handle is None:
            return
        server.views[client.shape_id] = view
        page = server.tails.page(view, handle, client.place, PAGE_BYTES)
        if page is not None:
            rest = server.tails.page(view, handle, page.tx, PAGE_BYTES)
            self.show(client, handle, view, page, is_end=rest is not None and not rest.transactions)
        if page is None or (not page.transactions and view.tx > client.place):
            newest = self.seen(client.shape_id)
            if newest is not None:
                self.read_log(client, handle, newest)
        self.check(client)

    def show(self, client: TailClient, handle: Handle, view: SeenShape, page: TailPage, *, is_end: bool) -> None:
        """The page has exactly what the log would give, and nothing that the log would answer otherwise."""
        place, shape_id = client.place, client.shape_id
        expected = [
            each for each in self._of(client) if place < each.lsn <= page.tx and not self._began_with(client, each)
        ]
        shown = [(each.tx_offset, list(each.rows())) for each in page.transactions]
        assert shown == [(each.lsn, each.rows(shape_id)) for each in expected], f"{shape_id} after {place}"
        for each in expected:
            assert not any(item.operation.startswith("truncate") for item in each.of(shape_id)), "a truncate was shown"
            assert each.schemas_of(shape_id) == {client.schema}, "rows of another schema were shown"
            assert all(item.value is None or item.value["id"] != LARGE for item in each.of(shape_id)), "too large"
        left_out = [each for each in self._of(client) if place < each.lsn <= page.tx and each not in expected]
        client.has += [each.lsn for each in expected]
        client.place = page.tx
        if is_end and page.tx >= view.tx:
            self.check_lsn(client, view)
        if shown:
            self.counts["shown"] += 1
            self.counts["ahead"] += page.tx > view.tx
            self.counts["not the end"] += not is_end
            self.counts["by a fold"] += handle.attempt != view.found.attempt
            self.counts["in the cut"] += view.cut is not None and view.tx <= place < view.cut
            self.counts["left out"] += bool(left_out)

    def read_log(self, client: TailClient, handle: Handle, view: SeenShape) -> None:
        """As a server without a tail does, which looks again before it tells a client to begin again."""
        snapshot = view.found.snapshot
        self.counts["from the log"] += 1
        try:
            view.require_followed(handle, client.place)
        except PositionError:
            self.begin(client, self.seen(client.shape_id))
            return
        is_other = view.found.attempt != handle.attempt and not (snapshot is not None and snapshot.is_fold)
        later = [each for each in self._of(client) if client.place < each.lsn <= view.tx]
        later = [each for each in later if snapshot is None or not snapshot.contains(each.lsn, each.xid)]
        truncates = any(item.operation.startswith("truncate") for each in later for item in each.of(client.shape_id))
        if handle.digest != view.facts.digest or is_other or truncates:
            self.begin(client, self.seen(client.shape_id))
            return
        client.has += [each.lsn for each in later]
        client.place = max(view.tx, client.place)
        self.check_lsn(client, view)

    def begin(self, client: TailClient, view: SeenShape | None) -> None:
        """Begin again once the log has what the client was shown."""
        if view is None or view.is_behind(client.shown):
            self.counts["waits"] += 1
            return
        found = view.found
        entry, snapshot = found.entry, found.snapshot
        assert entry is not None
        client.incarnation, client.schema = entry.definition.incarnation, int(view.facts.digest[8:], 16)
        client.handle, client.place, client.snapshot = view.handle, view.tx, snapshot
        client.has = [each.lsn for each in self._of(client) if self._has(client, each)]
        self.counts["begun"] += 1
        assert client.place >= client.shown or (view.cut or 0) >= client.shown, "a copy went back"
        client.shown = max(client.shown, client.place)

    def check(self, client: TailClient) -> None:
        if client.handle is not None:
            assert sorted(client.has) == [each.lsn for each in self._of(client) if self._has(client, each)]
            client.shown = max(client.shown, client.place)

    def check_lsn(self, client: TailClient, view: SeenShape) -> None:
        """The client has everything up to the LSN of an answer, which is its offset if it waits for cuts."""
        lsn = view.lsn(client.place)
        if lsn is not None:
            missing = [each.lsn for each in self._of(client) if each.lsn <= lsn and each.lsn not in client.has]
            assert missing == [], f"an answer says {lsn}"
            client.place = max(client.place, lsn) if client.cuts else client.place

    def _of(self, client: TailClient) -> list[Transaction]:
        """The transactions of its shape, in the incarnation that it has."""
        shape_id = client.shape_id
        return [x for x in self.transactions if shape_id in x.shapes and x.incarnations[shape_id] == client.incarnation]

    def _has(self, client: TailClient, tx: Transaction) -> bool:
        return tx.lsn <= client.place or self._began_with(client, tx)

    def _began_with(self, client: TailClient, tx: Transaction) -> bool:
        return client.snapshot is not None and client.snapshot.contains(tx.lsn, tx.xid)
