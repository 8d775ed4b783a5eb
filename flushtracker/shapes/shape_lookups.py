"""The lookups of a :class:`~flushtracker.shapes.shape_index.ShapeIndex`; each has the shapes found by certain columns.

A *placement* says where a shape is found: under which values of which columns, and in which range of one more column.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Generic, TypeAlias, TypeVar

from flushtracker.shapes.range_index import RangeIndex
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.where.required_ranges import RequiredRanges, range_parser
from flushtracker.shapes.where.required_values import RequiredValues, value_parser
from flushtracker.shapes.where.sql_values import Value
from flushtracker.shapes.where.value_range import ValueRange
from flushtracker.wal.changes import Relation, Row

_MAX_KEYS: Final = 100
"""The most keys of a shape; one with longer lists is looked up by fewer columns, or not at all."""

_EVERY_VALUE: Final = ValueRange()

_Columns: TypeAlias = tuple[str, ...]
_Key: TypeAlias = tuple[Value, ...]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a shape is found: under ``keys``, values of ``columns``, and within ``values`` of ``range_column``.

    Without values to look up, there are no columns and one empty key; without a range, no range column.
    """

    columns: _Columns
    keys: Sequence[_Key]
    range_column: str | None
    values: ValueRange

    @classmethod
    def of(cls, shape: Shape, relation: Relation) -> "Placement":
        """The placement of a shape whose form can be bound to ``relation``; ``ValueError`` if this one cannot."""
        columns, keys = _keys(shape.required_values(relation))
        ranges = shape.required_ranges(relation)
        if not ranges:
            return cls(columns, keys, None, _EVERY_VALUE)
        return cls(columns, keys, *_best_range(ranges, columns))

    @property
    def lookup_columns(self) -> tuple[_Columns, str | None]:
        """The columns that all shapes of a lookup share."""
        return self.columns, self.range_column


class ValueLookup(Generic[_T]):
    """The shapes that require values of the same columns, by those values."""

    def __init__(self, relation: Relation, columns: _Columns) -> None:
        self._by_key: dict[_Key, list[_T]] = {}
        self._parsers = [(column, value_parser(relation, column)) for column in columns]

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(self, placement: Placement, item: _T) -> None:
        for key in placement.keys:
            self._by_key.setdefault(key, []).append(item)

    def remove(self, placement: Placement, item: _T) -> None:
        """Remove an item; the cost grows with the number of items that require the same values."""
        for key in placement.keys:
            self._by_key[key].remove(item)
            if not self._by_key[key]:
                del self._by_key[key]

    def find(self, row: Row) -> Sequence[_T]:
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
        return self._by_key.get(tuple(key), ())

    def entries(self) -> Iterator[tuple[_Key, ValueRange, _T]]:
        """Each item under each of its keys; for tests."""
        for key, items in self._by_key.items():
            yield from ((key, _EVERY_VALUE, item) for item in items)

    def check_invariants(self) -> None:
        if not self._by_key or not all(self._by_key.values()):
            raise AssertionError("a lookup has empty keys, or none")


class RangeLookup(Generic[_T]):
    """The shapes that require values of the same columns, which may be none, and a range of one more column."""

    def __init__(self, relation: Relation, columns: _Columns, range_column: str) -> None:
        self._by_key: dict[_Key, RangeIndex[_T]] = {}
        self._parsers = [(column, value_parser(relation, column)) for column in columns]
        self._parsers.append((range_column, range_parser(relation, range_column)))

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(self, placement: Placement, item: _T) -> None:
        for key in placement.keys:
            if key not in self._by_key:
                self._by_key[key] = RangeIndex()
            self._by_key[key].add(placement.values, item)

    def remove(self, placement: Placement, item: _T) -> None:
        """Remove an item; the cost grows with the number of items with the same values and lower end."""
        for key in placement.keys:
            self._by_key[key].remove(placement.values, item)
            if not self._by_key[key]:
                del self._by_key[key]

    def find(self, row: Row) -> Sequence[_T]:
        """The shapes that require the values of ``row`` and whose range it lies in; raises as ``ValueLookup.find``."""
        key = []
        for column, parse in self._parsers:
            text = row[column]
            if text is None:
                # A comparison with NULL is unknown, so no range contains it.
                return ()
            key.append(parse(text))
        value = key.pop()
        ranges = self._by_key.get(tuple(key))
        return () if ranges is None else ranges.find(value)

    def entries(self) -> Iterator[tuple[_Key, ValueRange, _T]]:
        """Each item under each of its keys; for tests."""
        for key, ranges in self._by_key.items():
            yield from ((key, values, item) for values, item in ranges)

    def check_invariants(self) -> None:
        if not self._by_key or not all(self._by_key.values()):
            raise AssertionError("a lookup has empty keys, or none")
        for ranges in self._by_key.values():
            ranges.check_invariants()


Lookup: TypeAlias = ValueLookup[_T] | RangeLookup[_T]


def new_lookup(relation: Relation, placement: Placement) -> Lookup[_T]:
    """An empty lookup for shapes with this kind of placement."""
    if placement.range_column is None:
        return ValueLookup(relation, placement.columns)
    return RangeLookup(relation, placement.columns, placement.range_column)


def _keys(required: RequiredValues) -> tuple[_Columns, list[_Key]]:
    """The columns and keys under which a shape is indexed; if it cannot be looked up, no columns and one empty key."""
    chosen: dict[str, frozenset[Value]] = {}
    count = 1
    if len(required) == 1:
        # The most common kind of shape; there may be a million.
        ((column, values),) = required.items()
        if 0 < len(values) <= _MAX_KEYS:
            return (column,), [(value,) for value in values]
    for column, values in sorted(required.items(), key=lambda item: (len(item[1]), item[0])):
        count *= len(values)
        if not 0 < count <= _MAX_KEYS:
            break
        chosen[column] = values
    columns = tuple(sorted(chosen))
    return columns, list(product(*(chosen[column] for column in columns)))


def _best_range(required: RequiredRanges, columns: Iterable[str]) -> tuple[str | None, ValueRange]:
    """The range to index a shape by, on a column not in ``columns``; preferably one with two ends."""
    found = [(values.open_ends, column) for column, values in required.items() if column not in columns]
    if not found:
        return None, _EVERY_VALUE
    _, column = min(found)
    return column, required[column]
