"""Shapes with subqueries: changes per second through capture with many of them, and the time of a fold.

1,000 shapes, each with inner rows of its own. Rows are those of :mod:`tests.bench.wal`, from bytes to JSON as in
:mod:`tests.bench.throughput`. The fold is of one shape whose log has a million rows of its own table, half of which are
in it, and those of an inner table.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset
from tests.bench import wal
from tests.bench.measure import Table, medians, per_second
from tests.bench.reads import READ
from tests.bench.throughput import CHANGES_PER_TRANSACTION, STEPS, step_times
from tests.support.shape_log_rows import SOURCE, append, commit, item

_TAGS: Final = InnerTable(("public", "tags"), 2, ("id",))
_ORDERS: Final = InnerTable(("public", "orders"), 1, ("id",))
_OF_TAGS: Final = "note IN (SELECT name FROM public.tags WHERE org = {0})"
_OF_ORDERS: Final = "project IN (SELECT id FROM public.orders WHERE tenant_id = {0})"
_PER_APPEND: Final = 200_000
_TASK: Final = '{{"id":"{}","project":"{}","title":"Leave it at the door"}}'
_TASKS: Final = ShapeDefinition(
    "users",
    ("public", "tasks"),
    where="project IN (SELECT id FROM public.projects WHERE org = 7)",
    primary_key=("id",),
    inner_tables=(InnerTable(("public", "projects"), 2, ("id",)),),
)

_CHANGES: Final = """
import json, resource, sys, time
from flushtracker.delta.log.joined_changes import joined_changes
from flushtracker.delta.log.reader import ShapeLogReader

started = time.process_time()
finder = ShapeLogReader(sys.argv[1]).finder
shape = finder.find_rows("users", None, None, typed=False, even_if_ended=False)
changes = sum(len(table) for table in joined_changes(finder.table, shape, int(sys.argv[2])))
spent_s, peak_kb = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([changes, spent_s, peak_kb]))
"""


def tables(*, quick: bool) -> Iterator[Table]:
    """Of capture, and of a reader."""
    yield _routed(quick=quick)
    sizes = [(1_000, 10)] if quick else [(1_000_000, 10_000), (1_000_000, 1_000_000)]
    folds, changes = list[list[str]](), list[list[str]]()
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            log = str(Path(folder) / "log")
            _create(log, *size)
            folds.append(_fold(log, *size))
            changes += _changes(log, *size)
    yield Table(
        "read_shape of a shape with a subquery, by batches",
        ["rows of its table", "inner rows", "in the shape", "CPU s", "rows/s", "most MB resident"],
        folds,
    )
    yield Table(
        "What a server of HTTP does for one transaction of its log",
        ["rows of its table", "inner rows", "an update of", "changes", "CPU s", "most MB resident"],
        changes,
    )


def _routed(*, quick: bool) -> Table:
    count = 10 if quick else wal.TENANTS
    one = [_shape(n, f"tenant_id = {n} AND {_OF_TAGS.format(n)}") for n in range(count)]
    every = [_shape(n, _OF_TAGS.format(n)) for n in range(count)]
    inner = [_shape(n, _OF_ORDERS.format(n), "tasks", _ORDERS) for n in range(count)]
    rows = []
    for label, definitions, operation, most in (
        ("insert that the rest of one lets through", one, "insert", 100),
        ("update that the rest of one lets through", one, "update", 100),
        ("inner row of one, inserted", inner, "insert", 100),
        ("inner row of one, updated", inner, "update", 100),
        ("insert that the rest of all lets through", every, "insert", 2),
    ):
        transactions, rounds = (min(most, 2), 1) if quick else (most, 7)
        messages = wal.transactions(transactions, CHANGES_PER_TRANSACTION, operation)
        router = EventRouter(definitions)
        step_times(messages, router)
        times = medians(step_times(messages, router) for _ in range(rounds))
        steps_us = [time / (transactions * CHANGES_PER_TRANSACTION) * 1e6 for time in times]
        rows.append([label, per_second(sum(steps_us)), *(f"{us:,.1f}" for us in [sum(steps_us), *steps_us])])
    title = f"From bytes to JSON with {count:,} shapes with subqueries; µs per change"
    return Table(title, ["", "changes/s", "µs", *STEPS], rows)


def _shape(number: int, where: str, table: str = "orders", inner: InnerTable = _TAGS) -> ShapeDefinition:
    return ShapeDefinition(
        f"shape-{number}", ("public", table), where=where, primary_key=("id",), inner_tables=(inner,)
    )


def _create(log: str, tasks: int, projects: int) -> None:
    """A log in which every second task is of a project that the subquery returns."""
    create_shape_log(log)
    _register(log)
    inner = [(f'"public"."projects"/*/"{n}"', f'{{"id":"{n}","org":"7"}}') for n in range(projects)]
    _append(log, 0, inner)
    for first in range(0, tasks, _PER_APPEND):
        ids = range(first, min(first + _PER_APPEND, tasks))
        project = {n: n % projects if n % 2 else -1 for n in ids}
        _append(log, first + 1, [(f'"public"."tasks"/*/"{n}"', _TASK.format(n, project[n])) for n in ids])


def _fold(log: str, tasks: int, projects: int) -> list[str]:
    found, spent_s, peak_kb = _measured(READ, log)
    assert found == tasks // 2
    rate = f"{float(f'{(tasks + projects) / spent_s:.3g}'):,.0f}"
    return [f"{tasks:,}", f"{projects:,}", f"{found:,}", f"{spent_s:.1f}", rate, f"{peak_kb / 1e3:,.0f}"]


def _changes(log: str, tasks: int, projects: int) -> Iterator[list[str]]:
    """The changes of the query by a task, and by a project that the subquery returns no longer."""
    updates: dict[str, tuple[str, dict[str, str | None]]] = {
        "a task": ("tasks", {"id": "1", "title": "Ring"}),
        "a project": ("projects", {"id": "1", "org": "8"}),
    }
    for number, (label, (table, row)) in enumerate(updates.items(), 1):
        after = 1000 + tasks + number
        change = item((after + 1, 0), "update", f'"public"."{table}"/*/"1"', row)
        append(log, [commit(after), change, commit(after + 1)])
        found, spent_s, peak_kb = _measured(_CHANGES, log, str(after))
        yield [f"{tasks:,}", f"{projects:,}", label, f"{found:,}", f"{spent_s:.1f}", f"{peak_kb / 1e3:,.0f}"]


def _measured(program: str, *arguments: str) -> tuple[int, float, int]:
    """What a process of its own prints: a number, its CPU seconds and its peak memory in kB."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    found, spent_s, peak_kb = json.loads(done.stdout)
    return found, spent_s, peak_kb


def _append(log: str, number: int, rows: list[tuple[str, str]]) -> None:
    """One transaction of inserts."""
    filled = {"source": SOURCE, "shape_id": "users", "tx_offset": 1000 + number, "operation": "insert", "chunk": 0}
    columns = {
        **{name: pa.repeat(value, len(rows)) for name, value in filled.items()},
        "xid": pa.repeat(1000 + number, len(rows)),
        "op_offset": pc.multiply(pa.array(range(len(rows))), 2),
        "key": pa.array([key for key, _ in rows]),
        "value": pa.array([value for _, value in rows]),
    }
    items = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(rows), field.type)
        for field in SCHEMA
    ]
    write_deltalake(DeltaTable(log), pa.table(items, schema=SCHEMA), mode="append")
    append(log, [commit(1000 + number, shape_id="users")])


def _register(log: str) -> None:
    """The entries of the shape and its tables."""
    names = {"tasks": ("id", "project", "title"), "projects": ("id", "org")}
    entries: list[TableEntry | ShapeEntry] = [
        TableEntry(
            SOURCE,
            TableBinding(
                oid,
                ("public", table),
                ("id",),
                tuple(
                    ColumnBinding(n, name, 25 if name == "title" else 23, -1, 0) for n, name in enumerate(columns, 1)
                ),
            ),
        )
        for oid, (table, columns) in enumerate(names.items(), 1)
    ]
    entries.append(ShapeEntry(SOURCE, _TASKS, 1, LogOffset(9, 0)))
    RegistryTable(f"{log}_shapes", create=True).append(
        [entry.to_json() for entry in entries], datetime.now(timezone.utc)
    )
