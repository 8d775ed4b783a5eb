"""``RoutedTables``: the tables that have shapes, and which of them a change affects.

A change of a partition counts for each table that it is a partition of. With a catalog, tables are identified by OID;
otherwise by name, and the partitions are those that definitions list.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from flushtracker.errors import ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.partition_map import PartitionMap, TableKey
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_index import ShapeIndex
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.table_shapes import TableShapes
from flushtracker.shapes.type_binding import user_types
from flushtracker.wal.changes import Change, Truncate, UserType


@dataclass(frozen=True, slots=True)
class Route:
    """Routes changes of ``relation`` to the shapes on ``table``: it is that table, or a partition of it."""

    table: TableKey
    relation: TableKey
    index: ShapeIndex


class RoutedTables:
    """Tables with shapes, and the partitions of all tables."""

    def __init__(self, new_index: type[ShapeIndex], *, by_oid: bool) -> None:
        self.partitions = PartitionMap()
        self._by_oid = by_oid
        self._new_index = new_index
        self._tables: dict[TableKey, TableShapes] = {}
        self._types: dict[int, UserType] = {}
        self._bindings: dict[TableKey, TableBinding] = {}

    def key_of(self, definition: ShapeDefinition, table_oid: int | None) -> TableKey:
        """The key of a shape's table. Without OIDs, the table gets the partitions that the first shape on it lists.

        Raises:
            ShapeError: it lists others than a shape on its table.
            ValueError: there is no OID.
        """
        if self._by_oid:
            if table_oid is None:
                raise ValueError(f"shape {definition.id!r} has no table_oid, and this router identifies tables by OID")
            return table_oid
        table = definition.table
        if table not in self._tables:
            for partition in tuple(self.partitions.of(table)):
                self.partitions.discard(table, partition)
            for partition in definition.partitions:
                self.partitions.add(table, partition)
        if self.partitions.of(table).keys() != set(definition.partitions):
            raise ShapeError(
                f"shape {definition.id!r} lists other partitions than another shape on {'.'.join(table)}; list the "
                "same for all of them"
            )
        return table

    def add(self, table: TableKey, shape: Shape, starts_after: int) -> None:
        """Add a shape, which receives no transaction that commits at or below ``starts_after``."""
        if table not in self._tables:
            self._tables[table] = TableShapes(self._types, self._new_index)
        self._tables[table].add(shape, starts_after)

    def remove(self, table: TableKey, shape_id: str) -> None:
        shapes = self._tables[table]
        shapes.remove(shape_id)
        if not shapes:
            del self._tables[table]

    def bind(self, table: TableBinding) -> None:
        """Set a table's current binding, by which its shapes are routed from now on, and its user types."""
        bound = replace(table, partitions=())
        if self._bindings.get(table.oid) != bound:
            self._bindings[table.oid] = bound
        types = user_types(table.types)
        changed = {oid: found for oid, found in types.items() if self._types.get(oid) != found}
        self._types.update(changed)
        for shapes in self._tables.values() if changed else ():
            shapes.handle_types()

    def keep_bound(self, oids: Set[int]) -> None:
        """Forget the bindings of all tables but these, and the user types that none of these has."""
        self._bindings = {oid: binding for oid, binding in self._bindings.items() if oid in oids}
        kept = {oid for binding in self._bindings.values() for oid in user_types(binding.types)}
        for oid in self._types.keys() - kept:
            del self._types[oid]

    def binding_of(self, table: TableKey) -> TableBinding | None:
        """A table's current binding, the same object until it differs; its partitions are left out."""
        return self._bindings.get(table)

    def has_shapes_on(self, table: TableKey) -> bool:
        """Whether a change of ``table`` may affect any shape."""
        return table in self._tables or any(each in self._tables for each in self.partitions.tables_of(table))

    def columns_read(self, table: TableKey) -> frozenset[str] | None:
        """The columns of ``table`` that shapes read, except those of its own key; ``None`` for all.

        No other values are needed. A shape that is added later gets nothing of the open transaction. So a row needs the
        columns that were read when its transaction began, or when its relation was described in it.
        """
        found = frozenset[str]()
        for _, shapes in self._concerned(table):
            if shapes.columns_read is None:
                return None
            found |= shapes.columns_read
        return found

    def drop_partition(self, table: TableKey, partition: int) -> None:
        """Stop treating a relation as a partition of the table."""
        self.partitions.discard(table, partition)
        if table in self._tables:
            self._tables[table].forget(partition)

    def routes(self, change: Change, lsn: int) -> list[Route]:
        """The tables with shapes that changes like ``change`` affect, each with its index.

        Changes of a partition that commit, at ``lsn``, before it joined a table are not changes of that table.
        """
        relation = change.relation
        key = relation.relation_id if self._by_oid else relation.table
        concerned = self._concerned(key, lsn)
        if isinstance(change, Truncate) and change.lost_by is not None:
            shapes = self._tables.get(change.lost_by)
            concerned = iter([] if shapes is None else [(change.lost_by, shapes)])
        return [Route(table, key, shapes.index_for(relation)) for table, shapes in concerned]

    def _concerned(self, key: TableKey, lsn: int | None = None) -> Iterator[tuple[TableKey, TableShapes]]:
        """The tables with shapes that are ``key`` or have it as a partition; with ``lsn``, at that commit LSN."""
        for table in (key, *self.partitions.tables_of(key)):
            if table in self._tables and (lsn is None or table == key or self.partitions.of(table)[key] <= lsn):
                yield table, self._tables[table]

    def check_invariants(self) -> set[tuple[TableKey, str]]:
        """The tables with their shapes; raises ``AssertionError`` if an index disagrees with them. For tests."""
        for shapes in self._tables.values():
            shapes.check_invariants()
        self.partitions.check_invariants()
        if not all(self._tables.values()):
            raise AssertionError("a table has no shapes")
        return {(table, shape_id) for table, shapes in self._tables.items() for shape_id in shapes.shape_ids}
