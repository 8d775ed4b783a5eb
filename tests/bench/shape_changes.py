"""Adding many shapes to a running source, starting with many, and ending many at once.

It needs a PostgreSQL server of its own, whose catalog is read. Kafka is left out: a confirmation takes no time here,
and is counted. The times are CPU time of capture alone. Only to complete shapes is wall-clock time, with the server.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from flushtracker.capture.bound_tables import Tables
from flushtracker.capture.event_limit import EventLimit
from flushtracker.capture.outbox import Outbox
from flushtracker.capture.shape_registry import SourceEntries
from flushtracker.capture.subscriptions import Subscriptions
from flushtracker.errors import DecodeError, FlushtrackerError, ShapeError
from flushtracker.kafka.kafka_config import Topics
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.shapes_file import read_shapes
from flushtracker.wal.changes import Change, Column, Commit, Insert, Relation, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from tests.bench.measure import Table

_Result = TypeVar("_Result")
TABLES = 100
CHANGES = 20
MAX_RESOLVED_SINGLY = 500
MAX_ENDED_SINGLY = 100


class CountingPublisher:
    """Confirms everything at once, and counts how often that was waited for."""

    gate: Callable[[], bool] | None = None

    def __init__(self) -> None:
        self.confirmations = 0

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None: ...

    def poll(self, timeout_s: float = 0.0) -> None: ...

    def flush(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.confirmations += 1

    def abandon(self, failure: FlushtrackerError) -> None: ...


def tables(*, quick: bool = False) -> Iterator[Table]:
    sizes = (500,) if quick else (500, 10_000, 100_000)
    level = logging.getLogger("flushtracker").level
    logging.getLogger("flushtracker").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="flushtracker-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalPostgres(folder / "server") as server:
            yield _added(server, folder, sizes)
    logging.getLogger("flushtracker").setLevel(level)
    yield _ended((10, 100) if quick else (10, 100, 1_000, 10_000))


def _added(server: LocalPostgres, folder: Path, sizes: Sequence[int]) -> Table:
    names = [f"t{number}" for number in range(TABLES)]
    server.execute(
        *(f"CREATE TABLE {name} (id bigint PRIMARY KEY, tenant_id bigint, status text)" for name in names),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        "CREATE PUBLICATION shapes FOR ALL TABLES",
    )
    with closing(connect(server.options)) as connection:
        catalog = ServerTables(connection, "shapes")
        rows = [_added_row(catalog, folder / "shapes.yaml", size) for size in sizes]
    return Table(
        f"Shapes with tenant_id = n on {TABLES} tables, added to a running source, and a start with as many",
        [
            "shapes",
            "read the file, s",
            "complete each by itself, µs",
            "all at once, µs each",
            "add all, s",
            "confirmations",
            "start, s",
        ],
        rows,
    )


def _added_row(catalog: ServerTables, file: Path, size: int) -> list[str]:
    file.write_text("shapes:\n" + "".join(map(_yaml, range(size))))
    read, shapes = _cpu_timed(lambda: read_shapes(file).definitions)
    few = shapes[:MAX_RESOLVED_SINGLY]
    singly, _ = _timed(lambda: [catalog.resolve([shape]) for shape in few])
    together, _ = _timed(lambda: catalog.resolve(shapes))
    publisher = CountingPublisher()
    source = _source(catalog, publisher, SourceEntries())
    source.begin_source()
    add, _ = _cpu_timed(lambda: source.apply_definitions(shapes))
    confirmations = publisher.confirmations
    start, _ = _cpu_timed(lambda: _source(catalog, publisher, source.entries))
    per_shape = [f"{seconds * 1e6 / count:,.0f}" for seconds, count in ((singly, len(few)), (together, size))]
    return [f"{size:,}", f"{read:.2f}", *per_shape, f"{add:.2f}", str(confirmations), f"{start:.2f}"]


def _yaml(number: int) -> str:
    return f"- id: shape-{number}\n  table: public.t{number % TABLES}\n  where: tenant_id = {number}\n"


def _source(catalog: Tables, publisher: CountingPublisher, entries: SourceEntries) -> Subscriptions:
    topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
    return Subscriptions(
        "7/1/s", entries, Outbox(publisher, topics, lambda _: None, EventLimit(1 << 20, 1 << 20)), catalog, 1000
    )


def _ended(sizes: Sequence[int]) -> Table:
    rows = [_ended_row(size) for size in sizes]
    return Table(
        f"Shapes that all fail in a fragment of {CHANGES} changes: routed until they are removed",
        ["shapes", "all at once, ms", "routings", "one by one, ms", "routings", "ratio"],
        rows,
    )


def _ended_row(size: int) -> list[str]:
    together, rounds = _cpu_timed(lambda: _end_failing(size, all_at_once=True))
    cells = [f"{size:,}", f"{together * 1e3:,.1f}", str(rounds)]
    if size <= MAX_ENDED_SINGLY:
        singly, rounds = _cpu_timed(lambda: _end_failing(size, all_at_once=False))
        cells += [f"{singly * 1e3:,.1f}", str(rounds), f"{together / singly:.3f}"]
    return cells + [""] * (6 - len(cells))


def _end_failing(count: int, *, all_at_once: bool) -> int:
    """How often the fragment was routed."""
    table = Relation(1, "public", "t", "full", (Column("id", 20, is_key=True), Column("n", 20, is_key=True)))
    router = EventRouter(
        ShapeDefinition(f"s{number}", table.table, where="n > 0", primary_key=("id",)) for number in range(count)
    )
    changes: list[Change] = [
        Insert(table, LogOffset(9, 2 * number), {"id": str(number), "n": "bad" if number == CHANGES - 1 else "-1"})
        for number in range(CHANGES)
    ]
    commit = Commit("2026-11-21T01:02:03.456789Z", 10)
    fragment = TransactionFragment(7, 9, changes[-1].offset, has_begin=True, commit=commit, changes=tuple(changes))
    routings = 0
    while True:
        routings += 1
        try:
            router.route(fragment)
        except (ShapeError, DecodeError) as error:
            for shape_id in list(error.shape_errors)[: None if all_at_once else 1]:
                router.remove_shape(shape_id)
        else:
            return routings


def _timed(run: Callable[[], _Result], clock: Callable[[], float] = time.monotonic) -> tuple[float, _Result]:
    started = clock()
    result = run()
    return clock() - started, result


def _cpu_timed(run: Callable[[], _Result]) -> tuple[float, _Result]:
    return _timed(run, time.process_time)
