"""``ShapeIndex``: finds the shapes of one table that a change may concern, without testing all the others.

It is for relations of one layout (:mod:`~flushtracker.shapes.table_shapes`).

Most shapes require certain values in some columns (``tenant_id = 17``, ``status IN ('new', 'paid') AND region =
'eu'``), a range (``id BETWEEN 1000 AND 1999``, ``name LIKE 'ab%'``), or both. Shapes that require values of the same
columns and a range of the same column share a *lookup* (:mod:`~flushtracker.shapes.shape_lookups`). It finds those that
require the row's values by hash, and among these searches for ranges that contain the row's value
(:mod:`~flushtracker.shapes.range_index`). So the cost of a change grows with the number of shapes found and the number
of lookups, and only with the logarithm of the number of shapes. If a shape has several ranges, one with two ends is
searched, and the condition tests the others. A shape with neither values nor a range is in the lookup with no columns,
and every row finds it.

The index only narrows the choice; the shape's condition decides. It never omits a shape that a change affects:

- A shape is indexed under the values that its condition compares, not under their text: as numbers, 1, 01 and 1.0 are
  equal (:mod:`~flushtracker.shapes.where.required_values`). A range is one of these values, in their order
  (:mod:`~flushtracker.shapes.where.required_ranges`).
- An update is looked up by its old row and by its new row.
- A row that lacks a column, or whose value cannot be parsed, finds every shape: their conditions report the error.
- A TRUNCATE, and an update of a table that sends no old rows, find every shape. So do updates and deletes if old rows
  lack columns that a shape must know of them: each such shape reports that.

Shapes are bound on the first change of a relation of the layout. A shape that cannot be kept is refused at that point,
whatever values it requires.
"""

from collections.abc import Hashable, Iterable, KeysView, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from flushtracker.errors import FlushtrackerError, ShapeError, first_of
from flushtracker.shapes.shape import BoundShape, Shape, filled_new_row
from flushtracker.shapes.shape_lookups import Lookup, Placement, new_lookup
from flushtracker.shapes.where.value_range import ValueRange
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Update


@dataclass(slots=True, eq=False)
class IndexedShape:
    """A shape of an index; it receives no transaction that commits at or below ``starts_after``.

    ``is_placed`` means that it can be kept on the relation and is in a lookup.
    """

    shape: Shape
    starts_after: int
    is_placed: bool = False
    _bound: BoundShape | None = None

    @property
    def shape_id(self) -> str:
        return self.shape.definition.id

    def bound_to(self, relation: Relation) -> BoundShape:
        """The shape bound to ``relation``, which is the index's."""
        if self._bound is None:
            self._bound = self.shape.bind(relation)
        return self._bound


class ShapeIndex:
    """The shapes of one table, indexed by the values that they require.

    ``relation`` has the index's layout, including user types.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self._shapes: dict[str, IndexedShape] = {}
        self._has_identity = relation.replica_identity == "full" or bool(relation.key_columns)
        self._lookups: dict[Hashable, Lookup[IndexedShape]] = {}
        # The forms bound to the relation so far, and whether old rows lack columns that they must know.
        self._forms: dict[Hashable, bool] = {}
        self._lacking: set[str] = set()
        # A heap, by `starts_after`, of the shapes not yet in a lookup; it may still contain removed shapes.
        self._unplaced: list[tuple[int, int, IndexedShape]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shape_ids(self) -> KeysView[str]:
        return self._shapes.keys()

    def add(self, shape: Shape, starts_after: int) -> None:
        indexed = self._shapes[shape.definition.id] = IndexedShape(shape, starts_after)
        heappush(self._unplaced, (starts_after, self._added, indexed))
        self._added += 1

    def remove(self, shape_id: str) -> None:
        """Remove a shape of this index; the cost grows with the number of shapes found by the same values."""
        indexed = self._shapes.pop(shape_id)
        self._lacking.discard(shape_id)
        if not indexed.is_placed:
            return
        placement = Placement.of(indexed.shape, self.relation)
        lookup = self._lookups[placement.lookup_columns]
        lookup.remove(placement, indexed)
        if not lookup:
            del self._lookups[placement.lookup_columns]

    def candidates(self, change: Change, lsn: int) -> Sequence[IndexedShape]:
        """The shapes, without duplicates, that ``change`` may affect in a transaction that commits at ``lsn``.

        Raises:
            ShapeError: a shape cannot be kept on the relation; the error has the shape's id, and the errors of all such
                shapes.
        """
        if self._unplaced and self._unplaced[0][0] < lsn:
            self._place_until(lsn)
        return [indexed for indexed in self._find(change) if indexed.starts_after < lsn]

    def _place_until(self, lsn: int) -> None:
        """Place the shapes that start before ``lsn``; those that cannot be kept stay unplaced."""
        refused: list[tuple[int, int, IndexedShape]] = []
        errors: dict[str, FlushtrackerError] = {}
        while self._unplaced and self._unplaced[0][0] < lsn:
            indexed = self._unplaced[0][2]
            try:
                self._place(indexed)
            except ShapeError as error:
                errors[indexed.shape_id] = error
                refused.append(self._unplaced[0])
            heappop(self._unplaced)
        for unplaced in refused:
            heappush(self._unplaced, unplaced)
        if errors:
            raise first_of(errors)

    def _place(self, indexed: IndexedShape) -> None:
        if self._shapes.get(indexed.shape_id) is not indexed:
            return
        placement = self._placement(indexed.shape)
        lookup = self._lookups.get(placement.lookup_columns)
        if lookup is None:
            lookup = self._lookups[placement.lookup_columns] = new_lookup(self.relation, placement)
        lookup.add(placement, indexed)
        indexed.is_placed = True

    def _placement(self, shape: Shape) -> Placement:
        if shape.form in self._forms:
            try:
                placement = Placement.of(shape, self.relation)
            except ValueError:
                pass  # A literal is not of its column's type; binding the shape reports it.
            else:
                self._note(shape, is_lacking=self._forms[shape.form])
                return placement
        # The bound shape is not kept: of a million shapes, most are never found.
        is_lacking = shape.bind(self.relation).lack is not None
        if shape.form is not None:
            self._forms[shape.form] = is_lacking
        self._note(shape, is_lacking=is_lacking)
        return Placement.of(shape, self.relation)

    def _note(self, shape: Shape, *, is_lacking: bool) -> None:
        if is_lacking:
            self._lacking.add(shape.definition.id)

    def _find(self, change: Change) -> Iterable[IndexedShape]:
        if self._lacking and isinstance(change, Update | Delete):
            return self._shapes.values()
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
                placement = Placement.of(self._shapes[shape_id].shape, self.relation)
                expected = dict.fromkeys(placement.keys, placement.values)
                if columns != placement.lookup_columns or len(found) != len(expected) or dict(found) != expected:
                    raise AssertionError(f"shape {shape_id!r} is indexed under {found} of {columns}")
            places += under
        if sorted(places) != sorted(self._shapes):
            raise AssertionError(f"the shapes {sorted(self._shapes)} are placed as {sorted(places)}")
