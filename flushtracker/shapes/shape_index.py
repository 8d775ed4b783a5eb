"""``ShapeIndex``: finds the shapes of one table that a change may concern, without a look at all the others.

Most shapes ask for rows in which some columns have certain values (``tenant_id = 17``, ``status IN ('new', 'paid') AND
region = 'eu'``). Shapes that ask for the same columns are one group, and a group finds those that ask for just the
row's values by one look-up: so the cost of a change grows with the shapes that it finds and with the number of groups,
not with that of shapes. A shape that asks for nothing that can be looked up is in the group by no columns, and every
row finds it.

The index narrows the choice, and the shape's own condition decides. It never leaves out a shape that a change concerns:

- A shape stands under the values that its condition compares, not under their text: where they are numbers, 1, 01 and
  1.0 are one (:mod:`~flushtracker.shapes.where.required_values`).
- An update is looked up by its old row and by its new one.
- A row that lacks a column, or whose value cannot be read, finds every shape: their conditions say what is wrong.
- A TRUNCATE, and an update of a table that sends no old rows, find every shape.

Shapes are bound to the table when its first change comes, and again when it was altered: that is when a shape that
cannot be kept on it is refused, whatever values it asks for.
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
"""A shape stands under so many keys at most; one with longer lists is looked up by fewer columns, or not at all."""

_Columns: TypeAlias = tuple[str, ...]
_Key: TypeAlias = tuple[Value, ...]


@dataclass(slots=True, eq=False)
class IndexedShape:
    """A shape on one table as that is now; it gets nothing of a transaction that commits at ``starts_after`` or below.

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
        """The shape for ``relation``, which is the table as it is now."""
        if self._bound is None:
            self._bound = self.shape.bind(relation)
        return self._bound


class ShapeIndex:
    """The shapes of one table."""

    def __init__(self) -> None:
        self._shapes: dict[str, IndexedShape] = {}
        self._relation: Relation | None = None
        self._has_identity = False
        self._groups: dict[_Columns, _Group] = {}
        # Of these forms a shape has been bound to the relation.
        self._forms: set[Hashable] = set()
        # A heap of the shapes that are in no group yet, those that start first in front, and of some no longer here.
        self._waiting: list[tuple[int, int, IndexedShape]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shape_ids(self) -> Collection[str]:
        return self._shapes.keys()

    def add(self, shape: Shape, starts_after: int) -> None:
        """Take in one more shape."""
        indexed = self._shapes[shape.definition.id] = IndexedShape(shape, starts_after)
        heappush(self._waiting, (starts_after, self._added, indexed))
        self._added += 1

    def remove(self, shape_id: str) -> None:
        """Forget a shape that is here; costs as much as there are shapes that ask for the same values."""
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
        """The shapes that ``change`` may concern, of a transaction that commits at ``lsn``: each once.

        Raises:
            ShapeError: a shape cannot be kept on the change's relation; it has the shape's id.
        """
        relation = change.relation
        if relation is not self._relation:
            self._meet(relation)
        while self._waiting and self._waiting[0][0] < lsn:
            self._place(self._waiting[0][2], relation)
            heappop(self._waiting)
        return [indexed for indexed in self._found(change) if indexed.starts_after < lsn]

    def _meet(self, relation: Relation) -> None:
        """``relation`` is how the table is from now on."""
        if relation != self._relation:
            self._groups, self._forms = {}, set()
            shapes = [IndexedShape(indexed.shape, indexed.starts_after) for indexed in self._shapes.values()]
            self._shapes = {indexed.shape_id: indexed for indexed in shapes}
            self._waiting = [(indexed.starts_after, number, indexed) for number, indexed in enumerate(shapes)]
            heapify(self._waiting)
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
                pass  # A literal is not of its column's type, and to bind the shape says so.
        try:
            # What is bound here is not kept: of a million shapes, most are never found.
            shape.bind(relation)
        except ShapeError as error:
            error.shape_id = shape.definition.id
            raise
        if shape.form is not None:
            self._forms.add(shape.form)
        return shape.required_values(relation)

    def _found(self, change: Change) -> Iterable[IndexedShape]:
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
        """Raise ``AssertionError`` where a shape is not just where it has to be; for tests."""
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
                    raise AssertionError(f"shape {shape_id!r} stands under {found} of {columns}")
            places += under
            if not all(group.by_key.values()) or not under:
                raise AssertionError(f"the group by {columns} has empty places")
        if sorted(places) != sorted(self._shapes):
            raise AssertionError(f"the shapes {sorted(self._shapes)} are placed as {sorted(places)}")


class _Group:
    """The shapes that ask for values of the same columns, by those values."""

    def __init__(self, relation: Relation, columns: _Columns) -> None:
        self.by_key: dict[_Key, list[IndexedShape]] = {}
        self._parsers = [(column, value_parser(relation, column)) for column in columns]

    def find(self, row: Row) -> Sequence[IndexedShape]:
        """The shapes that ask for the values of ``row``; raises ``KeyError`` or ``ValueError`` where it has no such."""
        key = []
        for column, parse in self._parsers:
            text = row[column]
            if text is None:
                # Nobody asks for NULL: it equals nothing.
                return ()
            key.append(parse(text))
        return self.by_key.get(tuple(key), ())


def _keys(required: RequiredValues) -> tuple[_Columns, list[_Key]]:
    """By which columns and under which keys a shape is looked up; where it cannot be, by none and the empty one."""
    chosen: dict[str, frozenset[Value]] = {}
    count = 1
    for column, values in sorted(required.items(), key=lambda item: (len(item[1]), item[0])):
        count *= len(values)
        if not 0 < count <= _MAX_KEYS:
            break
        chosen[column] = values
    columns = tuple(sorted(chosen))
    return columns, list(product(*(chosen[column] for column in columns)))
