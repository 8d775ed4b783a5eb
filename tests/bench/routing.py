"""The cost of a change for a router with many shapes, and the cost of the shapes themselves."""

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
MAX_PLAIN = 10_000
ORDERS = wal.orders()


def tables(*, quick: bool = False) -> Iterator[Table]:
    sizes = (10, 100) if quick else (10, 10_000, 1_000_000)
    rows, costs = [], []
    for size in sizes:
        router, cost = _build(size)
        costs.append(cost)
        fragments = [_fragment(size, change) for change in (insert, update, unmatched)]
        indexed = medians_us([partial(router.route, fragment) for fragment in fragments], CHANGES, rounds=51)
        row = [f"{size:,}", *(f"{us:.1f}" for us in indexed)]
        rows.append(row + (_plain_scan_cells(router, size, fragments[0]) if size <= MAX_PLAIN else ["", ""]))
    yield Table(
        f"Routing, µs per change: shapes are tenant_id = 0, 1, 2, …; {CHANGES} changes of {TENANTS} tenants",
        ["shapes", "insert for 1 shape", "update for 1 shape", "insert for none", "plain scan, insert for 1", "ratio"],
        rows,
    )
    yield Table(
        "Many shapes: the time to add them, and to index them at the first change of their table",
        ["shapes", "add, s", "µs each", "index, s", "µs each", "bytes each"],
        costs,
    )


def _plain_scan_cells(router: EventRouter, size: int, fragment: TransactionFragment) -> list[str]:
    plain_router = PlainRouter(_definitions(size))
    plain_router.route(fragment)
    indexed, plain = medians_us([partial(r.route, fragment) for r in (router, plain_router)], CHANGES, rounds=3)
    return [f"{plain:,.1f}", f"{plain / indexed:,.0f} ×"]


def _build(size: int) -> tuple[EventRouter, list[str]]:
    """Build and index a router; return it with its costs. Memory is that of at most 10,000 shapes, with definitions."""
    definitions = _definitions(size)
    built: list[EventRouter] = []
    add = seconds(lambda: built.append(EventRouter(definitions)))
    router = built[0]
    index = seconds(lambda: router.route(_transaction([unmatched(0)], 1)))
    sample = min(size, 10_000)
    memory = kept_bytes(lambda: _indexed_router(sample)) / sample
    cells = [f"{add:.2f}", f"{add / size * 1e6:.1f}", f"{index:.2f}", f"{index / size * 1e6:.1f}", f"{memory:,.0f}"]
    return router, [f"{size:,}", *cells]


def _indexed_router(size: int) -> EventRouter:
    router = EventRouter(_definitions(size))
    router.route(_transaction([unmatched(0)], 1))
    return router


def _definitions(size: int) -> list[ShapeDefinition]:
    return [
        ShapeDefinition(f"orders-{n}", ORDERS.table, where=f"tenant_id = {n}", primary_key=("id",)) for n in range(size)
    ]


def insert(tenant: int) -> Change:
    return Insert(ORDERS, LogOffset(0, 0), wal.row(tenant, tenant))


def update(tenant: int) -> Change:
    return Update(ORDERS, LogOffset(0, 0), wal.row(tenant, tenant) | {"status": "none"}, wal.row(tenant, tenant))


def unmatched(_tenant: int) -> Change:
    return insert(-1)


def _fragment(size: int, change: Callable[[int], Change]) -> TransactionFragment:
    # Tenants with distant ids, as in practice.
    return _transaction([change(number % TENANTS * 7919 % size) for number in range(CHANGES)], 2)


def _transaction(changes: list[Change], lsn: int) -> TransactionFragment:
    commit = Commit("2026-11-21T01:02:03.456789Z", lsn + 1)
    return TransactionFragment(742, lsn, LogOffset(lsn, 2 * len(changes)), True, commit, tuple(changes))  # noqa: FBT003
