"""Extracts the columns of a shape's rows from their values, as PostgreSQL's text or with the types of
``column_types``.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.json as pj

from flushtracker.errors import DecodeError
from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table.arrow_types import typed_column
from flushtracker.shape_log.table.fold_items import ROW_ORDER
from flushtracker.shapes.table_binding import ColumnBinding

_MARK: Final = "="
"""Prefix of the user's columns while they are beside ``ROW_ORDER``, whose names a user's columns may have."""

_MOST_PARSED: Final = 1 << 30


class ValueColumns:
    """The columns of a shape's rows: first the ``known`` ones, then others as they appear in the rows."""

    def __init__(self, known: Mapping[str, ColumnBinding], *, typed: bool) -> None:
        self._known, self._typed = known, typed
        self._names = dict.fromkeys(known)

    def parse(self, rows: pa.Table) -> pa.Table:
        """The columns ``ROW_ORDER`` of the rows, and those in their values; see :meth:`unmarked`.

        Raises:
            DecodeError: a value is not an object of texts, or does not fit its type.
        """
        texts = self._texts(rows["value"].to_pylist())
        columns = {_MARK + name: self._column(name, array) for name, array in texts.items()}
        return pa.table({**{name: rows[name] for name in ROW_ORDER}, **columns})

    @property
    def schema(self) -> pa.Schema:
        """The columns and types of all parsed rows."""
        return pa.schema([(name, self._column(name, pa.array([], pa.string())).type) for name in self._names])

    def unmarked(self, parsed: pa.Table) -> pa.Table:
        schema = self.schema
        names = set(parsed.column_names)
        columns = [
            parsed[_MARK + field.name] if _MARK + field.name in names else pa.nulls(len(parsed), field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def _column(self, name: str, texts: pa.Array) -> pa.Array:
        return typed_column(name, texts, self._known[name]) if self._typed and name in self._known else texts

    def _texts(self, values: Sequence[str | None]) -> dict[str, pa.Array]:
        return self._parsed_by_arrow(values) or self._parsed_by_python(values)

    def _parsed_by_arrow(self, values: Sequence[str | None]) -> dict[str, pa.Array] | None:
        """The columns; ``None`` unless Arrow reads each value as one object of texts with known names."""
        if not self._names or not all(value and value[0] == "{" and value[-1] == "}" for value in values):
            return None
        data = "\n".join(value or "" for value in values).encode()
        if len(data) > _MOST_PARSED:
            return None
        schema = pa.schema([(name, pa.string()) for name in self._names])
        try:
            found = pj.read_json(
                io.BytesIO(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
            )
        except pa.ArrowException:
            return None
        if len(found) != len(values):
            return None
        return {name: found[name].combine_chunks() for name in self._names}

    def _parsed_by_python(self, values: Sequence[str | None]) -> dict[str, pa.Array]:
        rows = [columns_of(value) for value in values]
        self._names.update(dict.fromkeys(name for row in rows for name in row))
        try:
            return {name: pa.array([row.get(name) for row in rows], pa.string()) for name in self._names}
        except pa.ArrowException as error:
            raise DecodeError(
                "value of an insert or update in a shape's log has a column that is not a text"
            ) from error
