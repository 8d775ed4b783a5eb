"""``TableShapes``: the shapes of one table, with an index for each layout of the relations with its rows.

The *layout* of a relation is its columns and its replica identity. Partitions nearly always have the layout of their
table, and share one index. An attached partition may have its columns in another order, and while a table is altered
some partitions still have the old layout. An index exists as long as a relation has its layout.
"""

from collections import Counter
from collections.abc import Callable, KeysView, Mapping
from typing import TypeAlias

from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_index import ShapeIndex
from flushtracker.wal.changes import Column, Relation, UserType


class ColumnUse:
    """The columns that the shapes of one table read; O(1) for a shape that reads no new columns."""

    def __init__(self) -> None:
        self._sets: Counter[frozenset[str] | None] = Counter()
        self.columns: frozenset[str] | None = frozenset()
        """All columns that a shape reads, except those of the relation's own key; ``None`` for all columns."""

    def add(self, shape: Shape) -> None:
        columns = _read_columns(shape)
        self._sets[columns] += 1
        if self._sets[columns] == 1:
            self._update()

    def remove(self, shape: Shape) -> None:
        columns = _read_columns(shape)
        self._sets[columns] -= 1
        if not self._sets[columns]:
            del self._sets[columns]
            self._update()

    def _update(self) -> None:
        found = [columns for columns in self._sets if columns is not None]
        self.columns = None if None in self._sets else frozenset[str]().union(*found)


def _read_columns(shape: Shape) -> frozenset[str] | None:
    """The columns that the shape reads; ``None`` without ``primary_key``, since its key may be any columns."""
    return None if shape.definition.primary_key is None else shape.used_columns


_Layout: TypeAlias = tuple[tuple[Column, ...], str]


class TableShapes:
    """The shapes of one table. ``new_index`` creates an index for relations of a layout.

    ``types`` are the user types by OID; if the caller alters them, it must call :meth:`handle_types`.
    """

    def __init__(self, types: Mapping[int, UserType], new_index: Callable[[Relation], ShapeIndex] = ShapeIndex) -> None:
        self._types = types
        self._new_index = new_index
        self._shapes: dict[str, tuple[Shape, int]] = {}
        self._indexes: dict[_Layout, ShapeIndex] = {}
        self._relations: dict[int, tuple[Relation, _Layout]] = {}
        self._uses: Counter[_Layout] = Counter()
        self._columns = ColumnUse()

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shape_ids(self) -> KeysView[str]:
        return self._shapes.keys()

    @property
    def columns_read(self) -> frozenset[str] | None:
        """See :attr:`ColumnUse.columns`."""
        return self._columns.columns

    def add(self, shape: Shape, starts_after: int) -> None:
        """Add a shape, which receives no transaction that commits at or below ``starts_after``."""
        self._shapes[shape.definition.id] = shape, starts_after
        self._columns.add(shape)
        for index in self._indexes.values():
            index.add(shape, starts_after)

    def remove(self, shape_id: str) -> None:
        """Remove a shape; see :meth:`ShapeIndex.remove`."""
        shape, _ = self._shapes.pop(shape_id)
        self._columns.remove(shape)
        for index in self._indexes.values():
            index.remove(shape_id)

    def index_for(self, relation: Relation) -> ShapeIndex:
        """The index for changes of ``relation``: the table, or one of its partitions."""
        known = self._relations.get(relation.relation_id)
        if known is not None and known[0] is relation:
            return self._indexes[known[1]]
        typed = relation.with_types(self._types)
        layout = typed.columns, typed.replica_identity
        self._uses[layout] += 1
        self.forget(relation.relation_id)
        self._relations[relation.relation_id] = relation, layout
        if layout not in self._indexes:
            index = self._indexes[layout] = self._new_index(typed)
            for shape, starts_after in self._shapes.values():
                index.add(shape, starts_after)
        return self._indexes[layout]

    def forget(self, relation_id: int) -> None:
        """Drop a relation whose rows are no longer the table's, or that was altered."""
        _, layout = self._relations.pop(relation_id, (None, None))
        if layout is None:
            return
        self._uses[layout] -= 1
        if not self._uses[layout]:
            del self._uses[layout], self._indexes[layout]

    def handle_types(self) -> None:
        """Note that ``types`` were altered: relations with such columns get another layout with their next change."""
        for relation, layout in tuple(self._relations.values()):
            if relation.with_types(self._types).columns != layout[0]:
                self.forget(relation.relation_id)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` unless each index has all shapes, and is for a relation's layout; for tests."""
        layouts = Counter(layout for _, layout in self._relations.values())
        if layouts != self._uses or layouts.keys() != self._indexes.keys():
            raise AssertionError(f"{len(self._indexes)} indexes for {len(layouts)} layouts")
        for index in self._indexes.values():
            index.check_invariants()
            if index.shape_ids != self._shapes.keys():
                raise AssertionError(f"an index has {sorted(index.shape_ids)}, expected {sorted(self._shapes)}")
