"""``ShapeIndex``: finds the shapes of one table that a change may concern, without testing all the others.

Most shapes require certain values in some columns (``tenant_id = 17``, ``status IN ('new', 'paid') AND region =
'eu'``), a range (``id BETWEEN 1000 AND 1999``, ``name LIKE 'ab%'``), or both. Shapes that require values of the same
columns and a range of the same column share a *lookup* (:mod:`~flushtracker.shapes.shape_lookups`). It finds those that
require the row's values by their hash, and of those the ones that the row lies in by a search in their ranges
(:mod:`~flushtracker.shapes.range_index`). So the cost of a change grows with the number of shapes found and the number
of lookups, and only with the logarithm of the number of shapes. Of several ranges, one with two ends is searched, and
the condition tests the others. A shape with neither values nor a range is in the lookup with no columns, and every row
finds it.

The index narrows the choice, and the shape's own condition decides. It never leaves out a shape that a change concerns:

- A shape is indexed under the values that its condition compares, not under their text: as numbers, 1, 01 and 1.0 are
  equal (:mod:`~flushtracker.shapes.where.required_values`), and a range is one of these values, in their order
  (:mod:`~flushtracker.shapes.where.required_ranges`).
- An update is looked up by its old row and by its new row.
- A row that lacks a column, or whose value cannot be parsed, finds every shape: their conditions report the error.
- A TRUNCATE, and an update of a table that sends no old rows, find every shape.

Shapes are bound to the table on its first change, and again after it is altered. A shape that cannot be kept on the
table is refused at that point, whatever values it requires.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from flushtracker.errors import FlushtrackerError, ShapeError, first_of
from flushtracker.shapes.column_use import ColumnUse
from flushtracker.shapes.shape import BoundShape, Shape, filled_new_row
from flushtracker.shapes.shape_lookups import Lookup, Placement, new_lookup
from flushtracker.shapes.where.value_range import ValueRange
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Update, UserType


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
    """The shapes of one table, indexed by the values that they require.

    ``types`` are those of columns that are not built in, by OID; if the caller alters them, it calls
    :meth:`handle_types`.
    """

    def __init__(self, types: Mapping[int, UserType]) -> None:
        self._shapes: dict[str, IndexedShape] = {}
        # The last change's relation, and what the shapes are bound to: the same, with the types of its columns.
        self._sent: Relation | None = None
        self._relation: Relation | None = None
        self._types = types
        self._has_identity = False
        self._lookups: dict[Hashable, Lookup[IndexedShape]] = {}
        # The forms of which a shape has been bound to the relation.
        self._forms: set[Hashable] = set()
        # A heap, by `starts_after`, of the shapes not yet in a lookup; it may still contain removed shapes.
        self._unplaced: list[tuple[int, int, IndexedShape]] = []
        self._added = 0
        self._use = ColumnUse()

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shape_ids(self) -> Collection[str]:
        return self._shapes.keys()

    @property
    def columns_read(self) -> frozenset[str] | None:
        """See :attr:`ColumnUse.columns`."""
        return self._use.columns

    def add(self, shape: Shape, starts_after: int) -> None:
        """Add a shape."""
        self._use.add(shape)
        indexed = self._shapes[shape.definition.id] = IndexedShape(shape, starts_after)
        heappush(self._unplaced, (starts_after, self._added, indexed))
        self._added += 1

    def remove(self, shape_id: str) -> None:
        """Remove a shape of this index; the cost grows with the number of shapes found by the same values."""
        indexed = self._shapes.pop(shape_id)
        self._use.remove(indexed.shape)
        if not indexed.is_placed or self._relation is None:
            return
        placement = Placement.of(indexed.shape, self._relation)
        lookup = self._lookups[placement.lookup_columns]
        lookup.remove(placement, indexed)
        if not lookup:
            del self._lookups[placement.lookup_columns]

    def candidates(self, change: Change, lsn: int) -> Sequence[IndexedShape]:
        """The shapes, without duplicates, that ``change`` may concern in a transaction that commits at ``lsn``.

        Raises:
            ShapeError: a shape cannot be kept on the change's relation; the error has the shape's id, and the errors of
                all such shapes.
        """
        relation = self.relation_of(change)
        if self._unplaced and self._unplaced[0][0] < lsn:
            self._place_until(lsn, relation)
        return [indexed for indexed in self._find(change) if indexed.starts_after < lsn]

    def relation_of(self, change: Change) -> Relation:
        """The change's relation with the types of its columns, which becomes the current one."""
        if change.relation is self._sent and self._relation is not None:
            return self._relation
        self._sent = change.relation
        return self._set_relation(change.relation.with_types(self._types))

    def handle_types(self) -> None:
        """``types`` were altered: with the next change, shapes are bound again if that concerns the table."""
        self._sent = None

    def _set_relation(self, relation: Relation) -> Relation:
        """Make ``relation`` the current one; if the table was altered, its shapes must be bound again."""
        if relation != self._relation:
            self._lookups, self._forms = {}, set()
            shapes = [IndexedShape(indexed.shape, indexed.starts_after) for indexed in self._shapes.values()]
            self._shapes = {indexed.shape_id: indexed for indexed in shapes}
            self._unplaced = [(indexed.starts_after, number, indexed) for number, indexed in enumerate(shapes)]
            heapify(self._unplaced)
            self._has_identity = relation.replica_identity == "full" or bool(relation.key_columns)
        self._relation = relation
        return relation

    def _place_until(self, lsn: int, relation: Relation) -> None:
        """Place the shapes that start before ``lsn``; those that cannot be kept stay as they are."""
        refused: list[tuple[int, int, IndexedShape]] = []
        errors: dict[str, FlushtrackerError] = {}
        while self._unplaced and self._unplaced[0][0] < lsn:
            indexed = self._unplaced[0][2]
            try:
                self._place(indexed, relation)
            except ShapeError as error:
                errors[indexed.shape_id] = error
                refused.append(self._unplaced[0])
            heappop(self._unplaced)
        for unplaced in refused:
            heappush(self._unplaced, unplaced)
        if errors:
            raise first_of(errors)

    def _place(self, indexed: IndexedShape, relation: Relation) -> None:
        if self._shapes.get(indexed.shape_id) is not indexed:
            return
        placement = self._placement(indexed.shape, relation)
        lookup = self._lookups.get(placement.lookup_columns)
        if lookup is None:
            lookup = self._lookups[placement.lookup_columns] = new_lookup(relation, placement)
        lookup.add(placement, indexed)
        indexed.is_placed = True

    def _placement(self, shape: Shape, relation: Relation) -> Placement:
        if shape.form in self._forms:
            try:
                return Placement.of(shape, relation)
            except ValueError:
                pass  # A literal is not of its column's type; binding the shape reports it.
        # The bound shape is not kept: of a million shapes, most are never found.
        shape.bind(relation)
        if shape.form is not None:
            self._forms.add(shape.form)
        return Placement.of(shape, relation)

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
            for lookup in self._lookups.values():
                for row in rows:
                    found += lookup.find(row)
        except (KeyError, ValueError):
            return self._shapes.values()
        return found if len(rows) == 1 else dict.fromkeys(found)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` unless each shape is indexed exactly where it belongs; for tests."""
        places = [shape_id for shape_id, indexed in self._shapes.items() if not indexed.is_placed]
        for columns, lookup in self._lookups.items():
            lookup.check_invariants()
            under: dict[str, list[tuple[Hashable, ValueRange]]] = {}
            for key, values, indexed in lookup.entries():
                under.setdefault(indexed.shape_id, []).append((key, values))
            for shape_id, found in under.items():
                placement = self._expected_placement(self._shapes[shape_id].shape)
                expected = dict.fromkeys(placement.keys, placement.values)
                if columns != placement.lookup_columns or len(found) != len(expected) or dict(found) != expected:
                    raise AssertionError(f"shape {shape_id!r} is indexed under {found} of {columns}")
            places += under
        if sorted(places) != sorted(self._shapes):
            raise AssertionError(f"the shapes {sorted(self._shapes)} are placed as {sorted(places)}")

    def _expected_placement(self, shape: Shape) -> Placement:
        if self._relation is None:
            raise AssertionError(f"shape {shape.definition.id!r} is indexed, but its table is not known")
        return Placement.of(shape, self._relation)
