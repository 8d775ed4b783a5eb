"""Rows as a table, JSON lines or CSV."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final, TextIO

import pyarrow as pa

from flushtracker.delta.shape_log_reader import ShapeRead
from flushtracker.errors import printable
from flushtracker.wal.log_offset import LogOffset

_JSON_TEXTS: Final = ("value", "old_value")


def log_rows(read: ShapeRead) -> pa.Table:
    """A shape's log with its offsets as text, and without what is the same in all rows."""
    offsets = zip(read.rows["tx_offset"].to_pylist(), read.rows["op_offset"].to_pylist(), strict=True)
    texts = pa.array([str(LogOffset(*offset)) for offset in offsets], pa.string())
    rows = read.rows.drop_columns(["source", "shape_id", "tx_offset", "op_offset"])
    return rows.add_column(0, "offset", texts)


def write_jsonl(rows: pa.Table, out: TextIO, json_texts: Sequence[str] = ()) -> None:
    """One object per row; the columns ``json_texts`` are JSON already."""
    for row in rows.to_pylist():
        fields = {
            name: json.loads(value) if name in json_texts and value is not None else _json_value(value)
            for name, value in row.items()
        }
        out.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_log_jsonl(rows: pa.Table, out: TextIO) -> None:
    write_jsonl(rows, out, _JSON_TEXTS)


def write_csv(rows: pa.Table, out: TextIO, *, header: bool = True) -> None:
    """CSV as RFC 4180 has it; NULL is an empty field, and an empty text a quoted one, as PostgreSQL's COPY does."""
    if header:
        out.write(",".join(map(_csv_field, rows.column_names)) + "\r\n")
    for row in rows.to_pylist():
        out.write(",".join(map(_csv_field, row.values())) + "\r\n")


def _csv_field(value: object) -> str:
    text = "" if value is None else _text(value)
    quoted = value == "" or any(character in text for character in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if quoted else text


def write_table(rows: pa.Table, out: TextIO, *, header: bool = True) -> None:
    """Columns side by side, for a terminal: characters that cannot be printed are escaped."""
    lines = [[_cell(row, name) for name in rows.column_names] for row in rows.to_pylist()]
    if header:
        lines.insert(0, [printable(name) for name in rows.column_names])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        out.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _cell(row: Mapping[str, Any], name: str) -> str:
    return "NULL" if row[name] is None else printable(_text(row[name]))


def _text(value: object) -> str:
    match value:
        case bytes():
            return "\\x" + value.hex()
        case bool():
            return "t" if value else "f"
        case date():  # also a datetime
            return value.isoformat()
    return str(value)


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)
