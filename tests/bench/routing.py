"""What a change costs the router when there are many shapes, and what many shapes cost."""

from collections.abc import Callable, Iterator
from functools import partial

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Change, Commit, Insert, TransactionFragment, Update
from flushtracker.wal.log_offset import LogOffset
from tests.bench import wal
from tests.bench.measure import Table, kept_bytes, medians_us, seconds
from tests.support.plain_scan import PlainRouter

CHANGES = 100
TENANTS = 10
PLAIN_MOST = 10_000
ORDERS = wal.orders()


def tables(*, quick: bool = False) -> Iterator[Table]:
    sizes = (10, 100) if quick else (10, 10_000, 1_000_000)
    rows, costs = [], []
    for size in sizes:
        router, cost = _build(size)
        costs.append(cost)
        fragments = [_fragment(size, change) for change in (insert, update, unwanted)]
        indexed = medians_us([partial(router.route, fragment) for fragment in fragments], CHANGES, rounds=51)
        row = [f"{size:,}", *(f"{us:.1f}" for us in indexed)]
        rows.append(row + (_beside_plain(router, size, fragments[0]) if size <= PLAIN_MOST else ["", ""]))
    yield Table(
        f"Routing, µs for one change: the shapes are tenant_id = 0, 1, 2, …; {CHANGES} changes of {TENANTS} tenants",
        ["shapes", "insert for 1 shape", "update for 1 shape", "insert for none", "plain scan, insert for 1", "ratio"],
        rows,
    )
    yield Table(
        "Many shapes: what it takes to add them, and to take up their table when its first change comes",
        ["shapes", "add, s", "µs each", "take up, s", "µs each", "bytes each"],
        costs,
    )


def _beside_plain(router: EventRouter, size: int, fragment: TransactionFragment) -> list[str]:
    plain_router = PlainRouter(_definitions(size))
    plain_router.route(fragment)
    indexed, plain = medians_us([partial(r.route, fragment) for r in (router, plain_router)], CHANGES, rounds=3)
    return [f"{plain:,.1f}", f"{plain / indexed:,.0f} ×"]


def _build(size: int) -> tuple[EventRouter, list[str]]:
    """The router, placed and warm, and what that cost; memory is that of 10,000 at most, definitions included."""
    definitions = _definitions(size)
    built: list[EventRouter] = []
    add = seconds(lambda: built.append(EventRouter(definitions)))
    router = built[0]
    place = seconds(lambda: router.route(_transaction([unwanted(0)], 1)))
    sample = min(size, 10_000)
    memory = kept_bytes(lambda: _placed(sample)) / sample
    cells = [f"{add:.2f}", f"{add / size * 1e6:.1f}", f"{place:.2f}", f"{place / size * 1e6:.1f}", f"{memory:,.0f}"]
    return router, [f"{size:,}", *cells]


def _placed(size: int) -> EventRouter:
    router = EventRouter(_definitions(size))
    router.route(_transaction([unwanted(0)], 1))
    return router


def _definitions(size: int) -> list[ShapeDefinition]:
    return [
        ShapeDefinition(f"orders-{n}", ORDERS.table, where=f"tenant_id = {n}", primary_key=("id",)) for n in range(size)
    ]


def insert(tenant: int) -> Change:
    return Insert(ORDERS, LogOffset(0, 0), wal.row(tenant, tenant))


def update(tenant: int) -> Change:
    return Update(ORDERS, LogOffset(0, 0), wal.row(tenant, tenant) | {"status": "none"}, wal.row(tenant, tenant))


def unwanted(_tenant: int) -> Change:
    return insert(-1)


def _fragment(size: int, change: Callable[[int], Change]) -> TransactionFragment:
    # Tenants far from each other, as they come in life.
    return _transaction([change(number % TENANTS * 7919 % size) for number in range(CHANGES)], 2)


def _transaction(changes: list[Change], lsn: int) -> TransactionFragment:
    commit = Commit("2026-11-21T01:02:03.456789Z", lsn + 1)
    return TransactionFragment(742, lsn, LogOffset(lsn, 2 * len(changes)), True, commit, tuple(changes))  # noqa: FBT003
