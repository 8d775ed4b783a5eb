"""``ShapeIndex``: finds the shapes of one table that a change may concern, without testing all the others.

Most shapes require certain values in some columns (``tenant_id = 17``, ``status IN ('new', 'paid') AND region =
'eu'``). Shapes that require values of the same columns form a group, and one lookup finds those in the group that
require the row's values. So the cost of a change grows with the number of shapes found and the number of groups, not
with the number of shapes. A shape without values to look up is in the group with no columns, and every row finds it.

The index narrows the choice, and the shape's own condition decides. It never leaves out a shape that a change concerns:

- A shape is indexed under the values that its condition compares, not under their text: as numbers, 1, 01 and 1.0 are
  equal (:mod:`~flushtracker.shapes.where.required_values`).
- An update is looked up by its old row and by its new row.
- A row that lacks a column, or whose value cannot be parsed, finds every shape: their conditions report the error.
- A TRUNCATE, and an update of a table that sends no old rows, find every shape.

Shapes are bound to the table on its first change, and again after it is altered. A shape that cannot be kept on the
table is refused at that point, whatever values it requires.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Final, TypeAlias

from flushtracker.errors import ShapeError
from flushtracker.shapes.shape import BoundShape, Shape, filled_new_row
from flushtracker.shapes.where.required_values import RequiredValues, value_parser
from flushtracker.shapes.where.sql_values import Value
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, Update

_MAX_KEYS: Final = 100
"""The most keys a shape is indexed under; one with longer lists is looked up by fewer columns, or not at all."""

_Columns: TypeAlias = tuple[str, ...]
_Key: TypeAlias = tuple[Value, ...]


@dataclass(slots=True, eq=False)
class IndexedShape:
    """A shape on the table as it is now; it receives no transaction that commits at or below ``starts_after``.

    ``is_placed``: it can be kept on the table, and a row can find it.
    """

    shape: Shape
    starts_after: int
    is_placed: bool = False
    _bound: BoundShape | None = None

    @property
    def shape_id(self) -> str:
        return self.shape.definition.id

    def bound_to(self, relation: Relation) -> BoundShape:
        """The shape bound to ``relation``, which is the table as it is now."""
        if self._bound is None:
            self._bound = self.shape.bind(relation)
        return self._bound


class ShapeIndex:
    """The shapes of one table, indexed by the values that they require."""

    def __init__(self) -> None:
        self._shapes: dict[str, IndexedShape] = {}
        self._relation: Relation | None = None
        self._has_identity = False
        self._groups: dict[_Columns, _Group] = {}
        # The forms of which a shape has been bound to the relation.
        self._forms: set[Hashable] = set()
        # A heap, by `starts_after`, of the shapes not yet in a group; it may still contain removed shapes.
        self._unplaced: list[tuple[int, int, IndexedShape]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shape_ids(self) -> Collection[str]:
        return self._shapes.keys()

    def add(self, shape: Shape, starts_after: int) -> None:
        """Add a shape."""
        indexed = self._shapes[shape.definition.id] = IndexedShape(shape, starts_after)
        heappush(self._unplaced, (starts_after, self._added, indexed))
        self._added += 1

    def remove(self, shape_id: str) -> None:
        """Remove a shape of this index; the cost grows with the number of shapes that require the same values."""
        indexed = self._shapes.pop(shape_id)
        if not indexed.is_placed or self._relation is None:
            return
        columns, keys = _keys(indexed.shape.required_values(self._relation))
        by_key = self._groups[columns].by_key
        for key in keys:
            by_key[key].remove(indexed)
            if not by_key[key]:
                del by_key[key]
        if not by_key:
            del self._groups[columns]

    def candidates(self, change: Change, lsn: int) -> Sequence[IndexedShape]:
        """The shapes, without duplicates, that ``change`` may concern in a transaction that commits at ``lsn``.

        Raises:
            ShapeError: a shape cannot be kept on the change's relation; the error has the shape's id.
        """
        relation = change.relation
        if relation is not self._relation:
            self._set_relation(relation)
        while self._unplaced and self._unplaced[0][0] < lsn:
            self._place(self._unplaced[0][2], relation)
            heappop(self._unplaced)
        return [indexed for indexed in self._find(change) if indexed.starts_after < lsn]

    def _set_relation(self, relation: Relation) -> None:
        """Make ``relation`` the current one; if the table was altered, its shapes must be bound again."""
        if relation != self._relation:
            self._groups, self._forms = {}, set()
            shapes = [IndexedShape(indexed.shape, indexed.starts_after) for indexed in self._shapes.values()]
            self._shapes = {indexed.shape_id: indexed for indexed in shapes}
            self._unplaced = [(indexed.starts_after, number, indexed) for number, indexed in enumerate(shapes)]
            heapify(self._unplaced)
            self._has_identity = relation.replica_identity == "full" or bool(relation.key_columns)
        self._relation = relation

    def _place(self, indexed: IndexedShape, relation: Relation) -> None:
        if self._shapes.get(indexed.shape_id) is not indexed:
            return
        columns, keys = _keys(self._required_values(indexed.shape, relation))
        if columns not in self._groups:
            self._groups[columns] = _Group(relation, columns)
        for key in keys:
            self._groups[columns].by_key.setdefault(key, []).append(indexed)
        indexed.is_placed = True

    def _required_values(self, shape: Shape, relation: Relation) -> RequiredValues:
        if shape.form in self._forms:
            try:
                return shape.required_values(relation)
            except ValueError:
                pass  # A literal is not of its column's type; binding the shape reports it.
        try:
            # The bound shape is not kept: of a million shapes, most are never found.
            shape.bind(relation)
        except ShapeError as error:
            error.shape_id = shape.definition.id
            raise
        if shape.form is not None:
            self._forms.add(shape.form)
        return shape.required_values(relation)

    def _find(self, change: Change) -> Iterable[IndexedShape]:
        match change:
            case Insert():
                rows = [change.new]
            case Delete():
                rows = [change.old]
            case Update() if self._has_identity:
                rows = [change.new] if change.old is None else [change.old, filled_new_row(change)]
            case _:
                return self._shapes.values()
        found: list[IndexedShape] = []
        try:
            for group in self._groups.values():
                for row in rows:
                    found += group.find(row)
        except (KeyError, ValueError):
            return self._shapes.values()
        return found if len(rows) == 1 else dict.fromkeys(found)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` unless each shape is indexed exactly where it belongs; for tests."""
        places = [shape_id for shape_id, indexed in self._shapes.items() if not indexed.is_placed]
        for columns, group in self._groups.items():
            under: dict[str, set[_Key]] = {}
            for key, shapes in group.by_key.items():
                for indexed in shapes:
                    under.setdefault(indexed.shape_id, set()).add(key)
            for shape_id, found in under.items():
                relation = self._relation
                required = {} if relation is None else self._shapes[shape_id].shape.required_values(relation)
                if (columns, found) != (_keys(required)[0], set(_keys(required)[1])):
                    raise AssertionError(f"shape {shape_id!r} is indexed under {found} of {columns}")
            places += under
            if not all(group.by_key.values()) or not under:
                raise AssertionError(f"the group of {columns} has empty keys")
        if sorted(places) != sorted(self._shapes):
            raise AssertionError(f"the shapes {sorted(self._shapes)} are placed as {sorted(places)}")


class _Group:
    """The shapes that require values of the same columns, by those values."""

    def __init__(self, relation: Relation, columns: _Columns) -> None:
        self.by_key: dict[_Key, list[IndexedShape]] = {}
        self._parsers = [(column, value_parser(relation, column)) for column in columns]

    def find(self, row: Row) -> Sequence[IndexedShape]:
        """The shapes that require the values of ``row``.

        Raises ``KeyError`` if ``row`` lacks a column, and ``ValueError`` if a value cannot be parsed.
        """
        key = []
        for column, parse in self._parsers:
            text = row[column]
            if text is None:
                # No shape requires NULL: it equals nothing.
                return ()
            key.append(parse(text))
        return self.by_key.get(tuple(key), ())


def _keys(required: RequiredValues) -> tuple[_Columns, list[_Key]]:
    """The columns and keys under which a shape is indexed; if it cannot be looked up, no columns and one empty key."""
    chosen: dict[str, frozenset[Value]] = {}
    count = 1
    for column, values in sorted(required.items(), key=lambda item: (len(item[1]), item[0])):
        count *= len(values)
        if not 0 < count <= _MAX_KEYS:
            break
        chosen[column] = values
    columns = tuple(sorted(chosen))
    return columns, list(product(*(chosen[column] for column in columns)))
