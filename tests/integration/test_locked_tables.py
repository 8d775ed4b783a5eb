"""Tables that their owner keeps locked: the snapshots of other tables' shapes are taken meanwhile."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import PostgresUnavailableError
from flushtracker.events.registry import Registry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import rows
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.shape_log.snapshot import loop as snapshot_loop
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.snapshot_store import Outcome
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.snapshot_rig import SnapshotRig
from tests.support.waiting import wait_until


def definition(name: str) -> ShapeDefinition:
    return ShapeDefinition(name, ("public", name))


class Store:
    """Reads no rows: a table whose name begins with ``locked`` cannot be locked."""

    def __init__(self, rig: SnapshotRig) -> None:
        self.rig = rig
        self.tried = list[str]()
        self._taken = dict[ShapeKey, int]()
        self._registry = RegistryTable(rig.shapes)

    def takes(self, writer: str) -> bool:
        return bool(writer)

    def has_changed(self) -> bool:
        return self._registry.has_changed()

    def registry(self) -> Registry:
        return self._registry.entries()

    def taken(self) -> Mapping[ShapeKey, int]:
        return self._taken

    def take(self, group: DueTable, _stop: Event, _live: LiveSnapshotStatus) -> Outcome:
        name = group.table.table[1]
        if name not in self.tried[-1:]:
            self.tried.append(name)
        if name.startswith("locked"):
            if len(self.tried) == 2:
                self.rig.define(definition("late"))
            raise PostgresUnavailableError("canceling statement due to lock timeout")
        self._taken |= {(group.source, entry.definition.id): 1 for entry in group.shapes}
        return Outcome([entry.definition.id for entry in group.shapes], rows=1, seconds=1)


def test_tables_that_are_kept_locked_do_not_keep_others_waiting(
    postgres: LocalPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are not locked go first, and so does what becomes due after one attempt to lock such a table."""
    monkeypatch.setattr(snapshot_loop, "_RETRY_PAUSE_S", 0.0)
    locked = [f"locked{number}" for number in range(4)]
    postgres.execute(*[f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in (*locked, "free", "late")])
    rig = SnapshotRig(postgres, tmp_path, settings={"trigger": "50 ms"})
    rig.define(*map(definition, (*locked, "free")))
    stop, store = Event(), Store(rig)
    with closing(postgres.connect()) as owner:
        owner.autocommit = False
        rows(owner, f"LOCK TABLE {', '.join(locked)}")
        loop = SnapshotLoop(store, rig.config(), stop, (), again=False)
        thread = Thread(target=loop.run)
        thread.start()
        try:
            wait_until(lambda: set(store.tried) >= {*locked, "late"}, "an attempt for each table", timeout_s=120)
        finally:
            stop.set()
            thread.join(60)
    assert store.tried[:2] == ["free", "locked0"]
    assert store.tried.index("late") == 2
