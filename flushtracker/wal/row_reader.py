"""``RowReader``: reads the Insert, Update and Delete messages of one relation.

Most of the stream passes through here, so a value goes from the message's bytes into its row in one step. A value that
no shape reads is skipped and absent from its row, like one that the server did not send. The bytes are checked as in
:mod:`~flushtracker.wal.pgoutput`, except the text of skipped values and everything after the last value that is read.
"""

from collections.abc import Collection
from itertools import groupby
from struct import Struct
from struct import error as StructError  # noqa: N812  # a class, despite its lower-case name
from typing import Final, TypeAlias

from flushtracker.errors import DecodeError, UnreadableTextError
from flushtracker.wal.changes import (
    CHANGE_BYTES,
    Change,
    Delete,
    Insert,
    Relation,
    Row,
    Update,
    relation_row_bytes,
    values_bytes,
)
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import RowMessage
from flushtracker.wal.pgoutput_reader import MessageReader
from flushtracker.wal.text_codecs import UTF8

_FIRST: Final = 5
"""The position of the first row's kind, after the message's type and the relation's id."""

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_read_length: Final = Struct(">i").unpack_from

_Run: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Adjacent columns: those to skip, and those after them to read."""


class RowReader:
    """Reads the changes of ``relation``, and counts their :func:`~flushtracker.wal.changes.change_bytes`.

    Values are decoded with ``codec``. Raises:
        DecodeError: a name of the relation could not be decoded.
    """

    def __init__(self, relation: Relation, codec: str = UTF8) -> None:
        if (what := relation.unreadable_name) is not None:
            raise DecodeError(
                f"rows of relation {relation.relation_id} cannot be read: {what} has a name without equivalent in UTF-8"
            )
        self.relation = relation
        self._codec = codec
        self._names = tuple(column.name for column in relation.columns)
        self._key_columns = relation.key_columns
        self._row_bytes = relation_row_bytes(relation)
        self._columns: Collection[str] | None = None
        self._has_left_out = False
        self._runs: tuple[_Run, ...] = (((), self._names),)
        # The runs of a message's last row, without anything after the last column to read.
        self._last_runs: tuple[_Run, ...] = self._runs

    def read_only(self, columns: Collection[str] | None) -> None:
        """From the next change on, read only these columns and those of the key; ``None`` for all.

        Under ``REPLICA IDENTITY FULL`` every column is flagged as key, so only the given columns are read.
        """
        if (columns is self._columns or columns == self._columns) and not self._has_left_out:
            return
        self._columns, self._has_left_out = columns, False
        keys = () if self.relation.replica_identity == "full" else self._key_columns
        self._arrange(set(self._names) if columns is None else {*columns, *keys})

    def leave_out(self, column: str) -> None:
        """Skip this column too, until the next :meth:`read_only`."""
        self._has_left_out = True
        self._arrange({name for _, names in self._runs for name in names if name != column})

    def _arrange(self, wanted: Collection[str]) -> None:
        runs: list[_Run] = []
        skipped: tuple[str, ...] = ()
        for is_wanted, group in groupby(self._names, wanted.__contains__):
            if is_wanted:
                runs.append((skipped, tuple(group)))
                skipped = ()
            else:
                skipped = tuple(group)
        self._last_runs = tuple(runs)
        self._runs = (*runs, (skipped, ())) if skipped else self._last_runs

    def change(self, message: RowMessage, offset: LogOffset) -> tuple[Change, int]:
        """The change at ``offset``, and its size.

        Raises:
            UnreadableTextError: a value cannot be decoded.
            DecodeError: ``message`` is not exactly one row message of protocol version 1, or not of this relation.
        """
        data, operation = message.data, message.operation
        kind = data[_FIRST : _FIRST + 1]
        position, size = _FIRST, CHANGE_BYTES
        old: Row | None = None
        if operation != "Insert" and kind in (b"K", b"O"):
            old, position, old_size = self._row(
                message, _FIRST + 1, self._last_runs if operation == "Delete" else self._runs
            )
            if kind == b"K":
                # The server sends NULL for every other column, whatever its value. Only key columns are kept and
                # counted.
                old = {name: old[name] for name in self._key_columns if name in old}
                old_size = self._row_bytes + values_bytes(old)
            size += old_size
        if operation == "Delete":
            if old is None:
                raise self._error(message, _FIRST, "an old row, K or O")
            change: Change = Delete(self.relation, offset, old)
        else:
            if data[position : position + 1] != b"N":
                raise self._error(message, position, "a new row, N")
            new, position, new_size = self._row(message, position + 1, self._last_runs)
            size += new_size
            change = (
                Update(self.relation, offset, old, new) if operation == "Update" else Insert(self.relation, offset, new)
            )
        if position != len(data) and self._last_runs is self._runs:
            raise self._error(message, position, "the end of the message")
        return change, size

    def _row(  # noqa: C901  a call for each value would double the cost
        self, message: RowMessage, position: int, runs: tuple[_Run, ...]
    ) -> tuple[dict[str, str | None], int, int]:
        """The row at ``position``, the position after its ``runs``, and the bytes that were read."""
        data, size, codec = message.data, self._row_bytes, self._codec
        count = int.from_bytes(data[position : position + 2], "big")
        if count != len(self._names) or position + 2 > len(data):
            raise self._wrong_count(message, position, count)
        position += 2
        row: dict[str, str | None] = {}
        start, name = position, ""
        try:
            for skipped, names in runs:
                if skipped:
                    position = self._skip(message, position, skipped)
                for name in names:
                    kind = data[position]
                    if kind == _TEXT:
                        start = position + 5
                        length: int = _read_length(data, position + 1)[0]
                        if not 0 <= length <= len(data) - start:
                            raise self._wrong_length(message, position)
                        position = start + length
                        row[name] = data[start:position].decode(codec)
                        size += length
                    elif kind == _NULL:
                        row[name] = None
                        position += 1
                    elif kind == _UNCHANGED:
                        position += 1
                    else:
                        raise self._wrong_kind(message, position, name)
        except (IndexError, StructError) as error:
            raise self._cut_off(message, position, name) from error
        except UnicodeDecodeError as error:
            # No cause and no quoted byte: either would reveal part of a row's value.
            wrong = self._error(message, start + error.start, "text in UTF-8", found="other bytes")
            raise UnreadableTextError(str(wrong), name) from None
        if codec != UTF8:
            # The bytes read are not those of UTF-8.
            size = self._row_bytes + values_bytes(row)
        return row, position, size

    def _skip(self, message: RowMessage, position: int, names: tuple[str, ...]) -> int:
        """The position after the values of these columns, whose text is not decoded."""
        data, name = message.data, ""
        try:
            for name in names:
                kind = data[position]
                if kind == _TEXT:
                    length: int = _read_length(data, position + 1)[0]
                    if not 0 <= length <= len(data) - position - 5:
                        raise self._wrong_length(message, position)
                    position += 5 + length
                elif kind in (_NULL, _UNCHANGED):
                    position += 1
                else:
                    raise self._wrong_kind(message, position, name)
        except (IndexError, StructError) as error:
            raise self._cut_off(message, position, name) from error
        return position

    def _cut_off(self, message: RowMessage, position: int, name: str) -> DecodeError:
        """The error for a value at ``position`` that is cut off by the message's end."""
        if position < len(message.data):
            return self._error(message, position + 1, "a value's length")
        return self._error(message, position, f"the value of column {name}")

    def _wrong_length(self, message: RowMessage, position: int) -> DecodeError:
        return self._error(message, position + 1, f"a value's length from 0 to {len(message.data) - position - 5}")

    def _wrong_count(self, message: RowMessage, position: int, count: int) -> DecodeError:
        if position + 2 > len(message.data):
            return self._error(message, position, "a number of columns")
        return DecodeError(
            f"a row of {self._table} has {count} values, but the relation has {len(self._names)} columns; reconnect, "
            "so that the server resends from the confirmed LSN"
        )

    def _wrong_kind(self, message: RowMessage, position: int, column: str) -> DecodeError:
        if message.data[position] == _BINARY:
            return DecodeError(
                f"column {column} of {self._table} arrived in binary format, expected text; read the slot without the "
                "binary option"
            )
        return self._error(message, position, "a value's kind: n, u, t or b")

    def _error(self, message: RowMessage, position: int, expected: str, found: str = "") -> DecodeError:
        return MessageReader(message.data, message.operation, position).error(expected, found=found)

    @property
    def _table(self) -> str:
        return ".".join(self.relation.table)
