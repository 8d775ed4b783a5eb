"""A catalog of three tables, for capture without a server."""

from collections.abc import Iterable
from dataclasses import replace

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import QuietServer

USERS, OTHER, PARTITION = 7, 8, 9
LSN = 1000


class FakeTables(QuietServer):
    """A catalog in which ``part`` is a partition of ``users``."""

    def wal_end(self) -> int:
        return LSN + 500

    def __init__(self) -> None:
        id_column = ColumnBinding(1, "id", 25, -1, version=700)
        self.tables = {
            USERS: TableBinding(USERS, ("public", "users"), ID_KEY, (id_column,), published_by=("all tables",)),
            OTHER: TableBinding(OTHER, ("public", "other"), ID_KEY, (id_column,), published_by=("all tables",)),
        }
        part = PartitionBinding(PARTITION, ("public", "part"), 1, "/742", published_by=("all tables",))
        self.later = {USERS: replace(self.tables[USERS], partitions=(part,))}

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        return [self._resolved(definition) for definition in definitions]

    def _resolved(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, TableBinding]:
        (found,) = (table for table in self.tables.values() if table.table == definition.table)
        return definition, found

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        assert xid in {742, 743}
        if oid == PARTITION:
            self.tables |= self.later
            return frozenset([USERS])
        return frozenset()

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: self.tables[oid] for oid in oids if oid in self.tables}

    def empty_at(self, oid: int) -> None:
        assert oid != PARTITION

    def check_publication(self) -> str:
        return "16400/700"
