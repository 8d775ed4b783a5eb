"""Runs on executors: converts lines written by COPY to rows of the shape log, for all shapes of a plan."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from flushtracker.errors import DecodeError, FlushtrackerError
from flushtracker.postgres.copy_text import values_of
from flushtracker.postgres.range_query import RowSelection
from flushtracker.shape_log.snapshot.read_plan import ItemColumns, ShapeReads
from flushtracker.shapes.item_key import key_values
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Row

SCHEMA: Final = "shape_id string, op_offset bigint, key string, value string"
"""The rows of :meth:`ItemRows.batches`; the other columns of the log are the same in all rows."""

ROWS_PER_BATCH: Final = 10_000
CHARACTERS_PER_BATCH: Final = 4_000_000

_quoted = json.JSONEncoder(ensure_ascii=False).encode


class ItemTexts:
    """Keys and values of inserts, the same as :mod:`flushtracker.shapes.log_items` creates from the stream's rows.

    Faster, because it creates no change, item or mapping per row. The rows have the columns ``selected``.
    """

    def __init__(self, columns: ItemColumns, selected: Sequence[str]) -> None:
        names = (_quoted(name).replace("%", "%%") for name in columns.columns)
        self._value = "{" + ",".join(f"{name}:%s" for name in names) + "}"
        self._key_prefix = columns.key_prefix
        self._key = [columns.columns.index(name) for name in columns.key_columns]
        is_whole = tuple(selected) == columns.columns
        self._chosen = None if is_whole else [selected.index(name) for name in columns.columns]
        self._is_empty = not selected

    def of(self, lines: Iterable[str]) -> tuple[list[str], list[str]]:
        """The keys and the values of rows in COPY's text format, without line breaks."""
        keys, values = list[str](), list[str]()
        template, prefix, key, chosen, quoted = self._value, self._key_prefix, self._key, self._chosen, _quoted
        for line in lines:
            if "\\" in line:
                row = values_of(line)
                if chosen is not None:
                    row = [row[index] for index in chosen]
                values.append(template % tuple(["null" if text is None else quoted(text) for text in row]))
                keys.append(prefix + key_values([row[index] for index in key]))
            else:
                # No value is NULL, and none is escaped.
                texts = [] if self._is_empty else line.split("\t")
                if chosen is not None:
                    texts = [texts[index] for index in chosen]
                values.append(template % tuple(map(quoted, texts)))
                keys.append(prefix + key_values([texts[index] for index in key]))
        return keys, values


class ItemRows:
    """The log rows for shapes on one table; ``selection`` is what must be read.

    Shapes with the same columns and keys share their texts, which are created once per row. ``failures`` has the shapes
    whose condition, if evaluated here, has no outcome for some row.
    """

    def __init__(self, shapes: Sequence[ShapeReads], table: int) -> None:
        reads = [(shape.shape_id, shape.tables[table]) for shape in shapes]
        conditions = tuple(dict.fromkeys(each.where for _, each in reads if each.where is not None))
        filters = {each.filter: parse_where(each.filter.where) for _, each in reads if each.filter is not None}
        names = [name for _, each in reads for name in each.items.columns]
        names += [name for where in filters.values() for name in sorted(where.columns)]
        columns = tuple(dict.fromkeys(names))
        self.selection = RowSelection(columns, conditions, any(each.where is None for _, each in reads))
        numbers = {each: str(number) for number, each in enumerate([*conditions, *filters])}
        self._filters = {numbers[each]: where.bind(each.relation) for each, where in filters.items()}
        self._forms: dict[ItemColumns, dict[str | None, list[str]]] = {}
        """The shapes of each form, by the number of their condition; ``None`` for all rows."""
        for shape_id, each in reads:
            condition = each.filter or (each.where if self.selection.is_numbered else None)
            # Unnumbered rows are wanted by all shapes.
            number = None if condition is None else numbers[condition]
            self._forms.setdefault(each.items, {}).setdefault(number, []).append(shape_id)
        self._texts = {form: ItemTexts(form, columns) for form in self._forms}
        self.failures: dict[str | None, FlushtrackerError] = {}

    def batches(self, lines: Sequence[str], op_offset: int) -> Iterator[pa.RecordBatch]:
        """The rows for ``lines``, the first of which is at ``op_offset``; their size is limited if that of ``lines``
        is.
        """
        rows, found = self._split(lines)
        for form, shapes in self._forms.items():
            yield from self._form_batches(form, shapes, rows, found, op_offset)

    def _split(self, lines: Sequence[str]) -> tuple[Sequence[str], dict[str, list[int]]]:
        """The rows of the lines, and their indices by the numbers of the conditions that they satisfy."""
        if not self.selection.is_numbered and not self._filters:
            return lines, {"": list(range(len(lines)))}
        rows, found = list[str](), dict[str, list[int]]()
        for index, line in enumerate(lines):
            matches, _, row = line.partition("\t") if self.selection.is_numbered else ("", "", line)
            if self._filters:
                matches = " ".join(filter(None, [matches, *self._filtered(row)]))
            rows.append(row)
            found.setdefault(matches, []).append(index)
        return rows, found

    def _filtered(self, line: str) -> Iterator[str]:
        """The numbers of the conditions evaluated here that a row satisfies."""
        row = dict(zip(self.selection.columns, values_of(line), strict=False))
        return (number for number in self._filters if self._matches(number, row))

    def _matches(self, number: str, row: Row) -> bool:
        try:
            return self._filters[number](row) is True
        except DecodeError as error:
            for shapes in self._forms.values():
                self.failures |= dict.fromkeys(shapes.get(number, ()), error)
            return False

    def _form_batches(
        self,
        form: ItemColumns,
        shapes: dict[str | None, list[str]],
        rows: Sequence[str],
        found: dict[str, list[int]],
        op_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        every = shapes.get(None, [])
        wanted = [(_matching(shapes, every, matches), indices) for matches, indices in found.items()]
        wanted = [(shape_ids, indices) for shape_ids, indices in wanted if shape_ids]
        order = [index for _, indices in wanted for index in indices]
        keys, values = self._texts[form].of([rows[index] for index in order])
        made = _Made(keys, values, [op_offset + index for index in order])
        first = 0
        for shape_ids, indices in wanted:
            end = first + len(indices)
            characters = sum(map(len, values[first:end]))
            for shape_id in shape_ids:
                yield from made.add(shape_id, first, end, characters)
            first = end
        yield from made.rest()


def _matching(shapes: dict[str | None, list[str]], every: list[str], matches: str) -> list[str]:
    if not matches:
        return every
    return [*every, *(shape_id for number in matches.split(" ") for shape_id in shapes.get(number, ()))]


class _Made:
    """Collects rows for shapes, as spans of the created texts, into batches of limited size."""

    def __init__(self, keys: list[str], values: list[str], op_offsets: list[int]) -> None:
        self._columns = [pa.array(op_offsets, pa.int64()), pa.array(keys, pa.string()), pa.array(values, pa.string())]
        self._shape_ids, self._indices, self._characters = list[str](), list[int](), 0

    def add(self, shape_id: str, first: int, end: int, characters: int) -> Iterator[pa.RecordBatch]:
        self._shape_ids += [shape_id] * (end - first)
        self._indices += range(first, end)
        self._characters += characters
        if len(self._indices) >= ROWS_PER_BATCH or self._characters >= CHARACTERS_PER_BATCH:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._indices:
            indices = pa.array(self._indices, pa.int64())
            arrays = [pa.array(self._shape_ids, pa.string()), *(each.take(indices) for each in self._columns)]
            yield pa.RecordBatch.from_arrays(arrays, names=["shape_id", "op_offset", "key", "value"])
        self._shape_ids, self._indices, self._characters = [], [], 0
