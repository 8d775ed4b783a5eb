"""``flushtracker read``: prints a shape's rows or its log, once or as they are written.

As a table, JSON lines or CSV; some thousand rows at a time, so memory does not depend on their number.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import chain
from typing import Any, Final, TextIO

import pyarrow as pa

from flushtracker.config.write_config import load_log
from flushtracker.errors import (
    ConfigError,
    FlushtrackerError,
    ShapeEndedError,
    SnapshotMissingError,
    did_you_mean,
    listed,
    printable,
)
from flushtracker.process.program import StopRequest, print_status
from flushtracker.shape_log.table.listed_shapes import known_ids
from flushtracker.shape_log.table.reader import ShapeLogReader, ShapeRead
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn

_POLL_S: Final = 1.0
_JSON_TEXTS: Final = ("value", "old_value")
_MOST_NAMED: Final = 10


def run(arguments: argparse.Namespace) -> int:
    """Print what the arguments request; the reader of stdout may close it at any time."""
    if arguments.follow:
        StopRequest()
    try:
        if len(arguments.shape) > 1:
            _print_cut(arguments)
        else:
            _Printer(arguments).run()
        sys.stdout.flush()
    except ConfigError as error:
        if (hint := _known_shapes(arguments)) is None:
            raise
        raise ConfigError(f"{error}{hint}") from error
    except KeyboardInterrupt:
        if not arguments.follow:
            raise
    except BrokenPipeError:
        # Python flushes stdout again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _known_shapes(arguments: argparse.Namespace) -> str | None:
    """If a shape is unknown, the end of the message about it: which ones there are."""
    try:
        reader = log_reader(arguments)
        known = known_ids(reader)
        unknown = [each for each in arguments.shape if not reader.finder.refresh().sources_of(each)]
    except FlushtrackerError:
        return None
    if not known or not unknown:
        return None
    return did_you_mean(unknown[0], known) or f"; it has {listed(known, most=_MOST_NAMED)}"


def log_reader(arguments: argparse.Namespace) -> ShapeLogReader:
    """The shape log that ``--log`` names, or else the configuration."""
    if arguments.log is not None:
        return ShapeLogReader(arguments.log, arguments.shapes)
    sink = load_log(arguments.config)
    return ShapeLogReader(sink.log, arguments.shapes or sink.shapes, sink.storage_options)


def _print_cut(arguments: argparse.Namespace) -> None:
    """Print several shapes as of one moment: as tables with headings, or as JSON lines that name the shape."""
    reader = log_reader(arguments)
    read = reader.read_cut(arguments.shape, arguments.source, typed=arguments.typed)
    for shape_id, found in read.shapes.items():
        rows = _Rows(found)
        if arguments.format == "jsonl":
            write_jsonl(rows, sys.stdout, shape_id=shape_id)
        else:
            sys.stdout.write(f"{printable(shape_id)}:\n")
            write_table(rows, sys.stdout)
        sys.stdout.flush()
        line = f"shape {shape_id} of source {read.source}: {rows.count:,} rows, as of {format_lsn(read.lsn)}"
        print_status("flushtracker read", f"{line}{_position_text(found)}", arguments.log_format)


def _position_text(read: ShapeRead) -> str:
    """The end of a status line, with the value for ``--after``."""
    return "" if read.has_subqueries else f"; position {read.position}"


class _Rows:
    """The rows of a read in tables of some thousand, at least one, which can be iterated once; counts the rows
    taken.
    """

    def __init__(self, read: ShapeRead) -> None:
        self._batches = read.batches
        self.count = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for batch in self._batches:
            self.count += len(batch)
            yield pa.Table.from_batches([batch])
        if not self.count:
            yield self._batches.schema.empty_table()


class _Printer:
    """Prints each read; from the log, only new rows."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        (self._shape_id,) = arguments.shape
        self._reader = log_reader(arguments)
        self._printed: ShapeRead | None = None
        self._is_waiting = False

    def run(self) -> None:
        self._poll(has_begun=self._arguments.after is not None)
        while self._arguments.follow:
            time.sleep(_POLL_S)
            if self._reader.has_changed():
                self._poll(has_begun=True)

    def _poll(self, *, has_begun: bool) -> None:
        try:
            self._print(self._read(even_if_ended=self._arguments.even_if_ended))
            self._is_waiting = False
        except ShapeEndedError:
            # Rows written before it ended are still printed.
            if self._printed is not None:
                # Without the old state of the tables, a shape with subqueries can no longer be read.
                with suppress(ConfigError):
                    self._print(self._read(even_if_ended=True))
            raise
        except SnapshotMissingError as error:
            # A shape that is being resynced: its follower continues once the new snapshot is there.
            if not has_begun or not self._arguments.follow:
                raise
            if not self._is_waiting:
                print_status("flushtracker read", f"waiting: {error}", self._arguments.log_format)
            self._is_waiting = True

    def _read(self, *, even_if_ended: bool) -> ShapeRead:
        arguments = self._arguments
        if arguments.log_rows:
            after = arguments.after if self._printed is None else self._printed.position
            return self._reader.read_log(
                self._shape_id,
                after,
                arguments.source,
                changes_only=arguments.changes,
                even_if_ended=even_if_ended,
            )
        return self._reader.read_rows(
            self._shape_id,
            arguments.at,
            arguments.source,
            typed=arguments.typed,
            even_if_ended=even_if_ended,
            before=self._printed,
        )

    def _print(self, read: ShapeRead) -> None:
        before = self._printed
        if before is not None and before.reached == read.reached:
            return
        self._printed = read
        count = self._write(read, is_first=before is None)
        sys.stdout.flush()
        reached = "no whole transaction yet" if read.bound is None else f"up to {read.bound}"
        subject = f"shape {read.shape_id} of source {read.source}"
        line = f"{subject}: {count:,} rows, {reached}{_position_text(read)}"
        print_status("flushtracker read", line, self._arguments.log_format)

    def _write(self, read: ShapeRead, *, is_first: bool) -> int:
        is_log: bool = self._arguments.log_rows
        header, rows = is_first or not is_log, _Rows(read)
        shown = map(printed_log_rows, rows) if is_log else rows
        writers: dict[str, Callable[[], None]] = {
            "table": lambda: write_table(shown, sys.stdout, header=header),
            "csv": lambda: write_csv(shown, sys.stdout, header=header),
            "jsonl": lambda: write_jsonl(shown, sys.stdout, _JSON_TEXTS if is_log else ()),
        }
        writers[self._arguments.format]()
        return rows.count


def printed_log_rows(rows: pa.Table) -> pa.Table:
    """Rows of a shape's log with offsets as text, without constant columns and the job's own."""
    offsets = zip(rows["tx_offset"].to_pylist(), rows["op_offset"].to_pylist(), strict=True)
    texts = pa.array([str(LogOffset(*offset)) for offset in offsets], pa.string())
    rows = rows.drop_columns(["source", "shape_id", "tx_offset", "op_offset", "written_at"])
    return rows.add_column(0, "offset", texts)


def write_jsonl(
    tables: Iterable[pa.Table], out: TextIO, json_texts: Sequence[str] = (), shape_id: str | None = None
) -> None:
    """Write one object per row; the columns ``json_texts`` are JSON already. With ``shape_id``, wrap the row with its
    shape.
    """
    for row in chain.from_iterable(rows.to_pylist() for rows in tables):
        fields = {
            name: json.loads(value) if name in json_texts and value is not None else _json_value(value)
            for name, value in row.items()
        }
        line = fields if shape_id is None else {"shape_id": shape_id, "row": fields}
        out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_csv(tables: Iterable[pa.Table], out: TextIO, *, header: bool = True) -> None:
    """Write CSV as in RFC 4180. NULL is an empty field, and an empty text is quoted, as in PostgreSQL's COPY."""
    for rows in tables:
        if header:
            out.write(",".join(map(_csv_field, rows.column_names)) + "\r\n")
            header = False
        for row in rows.to_pylist():
            out.write(",".join(map(_csv_field, row.values())) + "\r\n")


def _csv_field(value: object) -> str:
    text = "" if value is None else _text(value)
    quoted = value == "" or any(character in text for character in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if quoted else text


def write_table(tables: Iterable[pa.Table], out: TextIO, *, header: bool = True) -> None:
    """Write columns side by side, for a terminal; unprintable characters are escaped.

    A column becomes wider from the first table with a longer value on, because not all rows are in memory.
    """
    widths = list[int]()
    for rows in tables:
        lines = [[_cell(row, name) for name in rows.column_names] for row in rows.to_pylist()]
        if header:
            lines.insert(0, [printable(name) for name in rows.column_names])
            header = False
        columns = list(zip(*lines, strict=True))
        widths = [
            max(width, *map(len, cells)) for width, cells in zip(widths or [0] * len(columns), columns, strict=True)
        ]
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
