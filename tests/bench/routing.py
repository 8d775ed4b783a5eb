"""The cost of a change for a router with many shapes, and the cost of the shapes themselves."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Change, Commit, Insert, Row, TransactionFragment, Update
from flushtracker.wal.log_offset import LogOffset
from tests.bench import wal
from tests.bench.measure import Table, kept_bytes, medians_us, seconds
from tests.support.plain_scan import PlainRouter

CHANGES = 100
TENANTS = 10
MAX_PLAIN = 10_000
REPLACED = 200
ORDERS = wal.orders()


@dataclass(frozen=True, slots=True)
class Conditions:
    """One kind of condition: shape number n takes the rows of tenant n, and no others."""

    name: str
    where: Callable[[int], str]
    row: Callable[[int], Row]
    """A row of a tenant; one of tenant -1 is in no shape."""


EQUALITIES = Conditions("tenant_id = n", lambda n: f"tenant_id = {n}", lambda n: wal.row(n, n))
RANGES = Conditions(
    "id BETWEEN 10n AND 10n + 9", lambda n: f"id BETWEEN {10 * n} AND {10 * n + 9}", lambda n: wal.row(10 * n + 5, n)
)
PREFIXES = Conditions(
    "status LIKE 'n-%'", lambda n: f"status LIKE '{n:07}-%'", lambda n: {**wal.row(n, n), "status": f"{n:07}-x"}
)
BOTH = Conditions(
    "tenant_id = n % 100 AND id >= 10n AND id < 10n + 10",
    lambda n: f"tenant_id = {n % 100} AND id >= {10 * n} AND id < {10 * n + 10}",
    lambda n: wal.row(10 * n + 5, n % 100),
)


def tables(*, quick: bool = False) -> Iterator[Table]:
    sizes = (10, 100) if quick else (10, 10_000, 1_000_000)
    rows, costs = [], []
    for conditions in (EQUALITIES, RANGES, PREFIXES, BOTH):
        for size in sizes:
            router, cost = _build(conditions, size)
            costs.append(cost)
            fragments = [_fragment(conditions, size, change) for change in (insert, update, unmatched)]
            indexed = medians_us([partial(router.route, fragment) for fragment in fragments], CHANGES, rounds=51)
            row = [conditions.name, f"{size:,}", *(f"{us:.1f}" for us in indexed)]
            plain = _plain_scan_cells(router, conditions, size, fragments[0]) if size <= MAX_PLAIN else ["", ""]
            rows.append(row + plain)
            del router
    yield Table(
        f"Routing, µs per change: shapes n = 0, 1, 2, … on one table; {CHANGES} changes of {TENANTS} shapes",
        ["where", "shapes", "insert for 1", "update for 1", "insert for none", "plain scan, insert for 1", "ratio"],
        rows,
    )
    yield Table(
        "Many shapes: the time to add them, and to index them at the first change of their table",
        ["where", "shapes", "add, s", "µs each", "index, s", "µs each", "bytes each", "replace one, µs"],
        costs,
    )


def _plain_scan_cells(
    router: EventRouter, conditions: Conditions, size: int, fragment: TransactionFragment
) -> list[str]:
    plain_router = PlainRouter(_definitions(conditions, size))
    plain_router.route(fragment)
    indexed, plain = medians_us([partial(r.route, fragment) for r in (router, plain_router)], CHANGES, rounds=3)
    return [f"{plain:,.1f}", f"{plain / indexed:,.0f} ×"]


def _build(conditions: Conditions, size: int) -> tuple[EventRouter, list[str]]:
    """Build and index a router; return it with its costs. Memory is that of at most 10,000 shapes, with definitions."""
    definitions = _definitions(conditions, size)
    built: list[EventRouter] = []
    add = seconds(lambda: built.append(EventRouter(definitions)))
    router = built[0]
    index = seconds(lambda: router.route(_transaction([unmatched(conditions, 0)], 1)))
    sample = min(size, 10_000)
    memory = kept_bytes(lambda: _indexed_router(conditions, sample)) / sample
    cells = [f"{add:.2f}", f"{add / size * 1e6:.1f}", f"{index:.2f}", f"{index / size * 1e6:.1f}", f"{memory:,.0f}"]
    replaced = statistics.median(seconds(replacement) for replacement in _replacements(router, conditions, size))
    return router, [conditions.name, f"{size:,}", *cells, f"{replaced * 1e6:.1f}"]


def _replacements(router: EventRouter, conditions: Conditions, size: int) -> Iterator[Callable[[], object]]:
    """Each removes a shape, adds the same under a new id, and routes a change."""

    def replace_shape(number: int) -> None:
        tenant = number * 7919 % size
        router.remove_shape(f"orders-{tenant}" if number < size else f"again-{number - size}")
        router.add_shape(replace(_definition(conditions, tenant), id=f"again-{number}"))
        router.route(_transaction([unmatched(conditions, 0)], 2 + number))

    return (partial(replace_shape, number) for number in range(REPLACED))


def _indexed_router(conditions: Conditions, size: int) -> EventRouter:
    router = EventRouter(_definitions(conditions, size))
    router.route(_transaction([unmatched(conditions, 0)], 1))
    return router


def _definitions(conditions: Conditions, size: int) -> list[ShapeDefinition]:
    return [_definition(conditions, number) for number in range(size)]


def _definition(conditions: Conditions, number: int) -> ShapeDefinition:
    return ShapeDefinition(f"orders-{number}", ORDERS.table, where=conditions.where(number), primary_key=("id",))


def insert(conditions: Conditions, tenant: int) -> Change:
    return Insert(ORDERS, LogOffset(0, 0), conditions.row(tenant))


def update(conditions: Conditions, tenant: int) -> Change:
    row = conditions.row(tenant)
    return Update(ORDERS, LogOffset(0, 0), {**row, "note": "none"}, row)


def unmatched(conditions: Conditions, _tenant: int) -> Change:
    return insert(conditions, -1)


def _fragment(conditions: Conditions, size: int, change: Callable[[Conditions, int], Change]) -> TransactionFragment:
    # Tenants with distant ids, as in practice.
    changes = [change(conditions, number % TENANTS * 7919 % size) for number in range(CHANGES)]
    return _transaction(changes, 2 + REPLACED)


def _transaction(changes: list[Change], lsn: int) -> TransactionFragment:
    commit = Commit("2026-11-21T01:02:03.456789Z", lsn + 1)
    return TransactionFragment(742, lsn, LogOffset(lsn, 2 * len(changes)), True, commit, tuple(changes))  # noqa: FBT003
