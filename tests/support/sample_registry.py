"""Entries of a registry beside a shape log: the shape ``users``, its table, and snapshots of it."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.cut_log import CutLog
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.key_bindings import ID_KEY
from tests.support.shape_log_rows import SOURCE

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_TYPES = {"id": 23, "price": 1700, "paid": 16, "day": 1082, "at": 1184, "data": 17, "note": 25}


def shape_entry(shape_id: str = "users", **changed: Any) -> ShapeEntry:
    facts = {"source": SOURCE, "table_oid": 7, "starts_after": LogOffset(9, 0), **changed}
    return ShapeEntry(definition=ShapeDefinition(shape_id, ("public", "users")), **facts)


def table_entry() -> TableEntry:
    columns = tuple(
        ColumnBinding(number, name, oid, (10 << 16 | 2) + 4 if oid == 1700 else -1, 0)
        for number, (name, oid) in enumerate(_TYPES.items(), start=1)
    )
    return TableEntry(SOURCE, TableBinding(7, ("public", "users"), ID_KEY, columns))


def register(log: str, *entries: ShapeEntry | TableEntry) -> None:
    RegistryTable(f"{log}_shapes", create=True).append([entry.to_json() for entry in entries], _NOW)


def again(log: str, entry: ShapeEntry | TableEntry, later_s: int) -> None:
    """Register an entry once more, some seconds after the first ones."""
    RegistryTable(f"{log}_shapes").append([entry.to_json()], _NOW + timedelta(seconds=later_s))


def note(log: str, cut: int) -> None:
    """Note a cut of the source in the log."""
    CutLog(log, RegistryTable(f"{log}_shapes")).note({SOURCE: cut})


def users_log(folder: Path) -> str:
    """A shape log in ``folder``, without rows, beside a registry of the shape and its table."""
    log = str(folder / "log")
    create_shape_log(log)
    register(log, shape_entry(), table_entry())
    return log


def taken(attempt: int, snapshot: str, lsn: int) -> ShapeSnapshot:
    visible = MvccSnapshot.parse(snapshot)
    return ShapeSnapshot(attempt, visible, lsn, visible.xmax + 1000)


def wanted_entry() -> ShapeEntry:
    entry = shape_entry(starts_visible=True)
    return replace(entry, definition=replace(entry.definition, snapshot=True))
