"""``ColumnUse``: the columns of a table that its shapes read, updated as shapes are added and removed."""

from collections import Counter

from flushtracker.shapes.shape import Shape


class ColumnUse:
    """The columns that the shapes of one table read; O(1) for a shape that reads no new columns."""

    def __init__(self) -> None:
        self._sets: Counter[frozenset[str] | None] = Counter()
        self._columns: frozenset[str] | None = frozenset()

    @property
    def columns(self) -> frozenset[str] | None:
        """All columns that a shape reads, except those of the relation's own key; ``None`` for all columns."""
        return self._columns

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
        self._columns = None if None in self._sets else frozenset[str]().union(*found)


def _read_columns(shape: Shape) -> frozenset[str] | None:
    """The columns that the shape reads; ``None`` without ``primary_key``, since its key may be any columns."""
    return None if shape.definition.primary_key is None else shape.used_columns
