"""A server with a publication and a slot, and the log and the registry of shapes on its tables, without capture."""

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from deltalake import DeltaTable

from flushtracker.config.snapshot_config import SnapshotConfig, load_snapshot_config
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.snapshot_export import primary_server
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Row
from flushtracker.wal.log_offset import LogOffset
from tests.support.config_file import write_config

SLOT = "shapes"


@dataclass
class SnapshotRig:
    """``folder`` gets the configuration, and the tables, unless these are at ``place``, a URI with ``options``.

    ``stores`` are keys of ``storage``, and ``settings`` those of ``snapshot``.
    """

    server: LocalPostgres
    folder: Path
    stores: Mapping[str, object] = field(default_factory=dict)
    place: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server.execute(
            "CREATE PUBLICATION shapes FOR ALL TABLES",
            f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
        )
        with closing(self.server.connect()) as connection:
            self.source = f"{primary_server(connection)}/{SLOT}"
        place = self.place or str(self.folder)
        self.log, self.shapes = f"{place}/log", f"{place}/log_shapes"
        create_shape_log(self.log, self.options)
        self._registry = RegistryTable(self.shapes, self.options, create=True)

    def define(self, *definitions: ShapeDefinition, starts_visible: bool = True) -> list[ShapeEntry]:
        """Register shapes, as the writers' job does what capture has published."""
        # As capture resolves them.
        with closing(self.server.connect()) as connection:
            found = ServerTables(connection, "shapes").resolve(definitions)
        entries = [
            ShapeEntry(
                self.source,
                replace(resolved, snapshot=definition.snapshot is not False),
                binding.oid,
                LogOffset(1, 0),
                starts_visible=starts_visible,
            )
            for definition, (resolved, binding) in zip(definitions, found, strict=True)
        ]
        bindings = {binding.oid: binding for _, binding in found}
        self.register([*(TableEntry(self.source, binding) for binding in bindings.values()), *entries])
        return entries

    def register(self, entries: Iterable[ShapeEntry | TableEntry]) -> None:
        self._registry.append([entry.to_json() for entry in entries], datetime.now(timezone.utc))

    def config_file(self, **snapshot: object) -> Path:
        """The configuration, with further keys of ``snapshot``."""
        settings = {
            "postgres": dict(self.server.options),
            "storage": {"path": self.place or str(self.folder), **self.stores},
            "capture": {"publication": "shapes"},
            "snapshot": {**self.settings, **snapshot},
            "status": False,
        }
        return write_config(self.folder / "snapshot.yaml", settings)

    def config(self, **snapshot: object) -> SnapshotConfig:
        return load_snapshot_config(self.config_file(**snapshot))

    def rows(self, shape_id: str) -> list[dict[str, object]]:
        """The rows of a shape's log, by attempt and offset."""
        rows = [row for row in table_rows(DeltaTable(self.log), ["*"]).to_pylist() if row["shape_id"] == shape_id]
        return sorted(rows, key=lambda row: (row["chunk"], row["tx_offset"], row["op_offset"]))

    def items(self, shape_id: str) -> list[Row]:
        """The values of a shape's snapshot, which must be whole, in the order of their keys."""
        *items, end = self.rows(shape_id)
        assert end["operation"] == "snapshot"
        assert len({row["op_offset"] for row in items}) == len(items)
        assert {row["operation"] for row in items} <= {"insert"}
        return [json.loads(str(row["value"])) for row in sorted(items, key=lambda row: str(row["key"]))]
