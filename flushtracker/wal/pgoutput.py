"""Decoder of PostgreSQL's ``pgoutput`` messages, protocol version 1.

A message is one type byte and the fields that PostgreSQL's manual lists under "Logical Replication Message Formats".
All integers are big-endian, strings end in a zero byte, text is UTF-8 unless another codec is given. Each message is
decoded on its own: looking up the relation of a row and checking the order of messages is left to
:mod:`~flushtracker.wal.fragment_converter`.

The bytes are untrusted. Each read is checked against the end of the message, each flag against the values defined in
version 1, and a message must end with its last field. Any violation raises a ``DecodeError`` with the message's type
and the byte's position; it never shows a row's values.

Data that any role may write, outside the tables of shapes, must not stop capture. So origins, types and logical
messages, which change no table, are not read past their first byte. A name that cannot be decoded, possible in most
encodings but UTF8, is kept with its bytes as surrogates (:attr:`~flushtracker.wal.changes.Relation.unreadable_name`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, TypeAlias

from flushtracker.wal.changes import Column, Relation
from flushtracker.wal.pgoutput_reader import I16, I32, U8, U32, MessageReader
from flushtracker.wal.text_codecs import UTF8
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class Begin:
    """The start of a transaction; ``final_lsn`` is the LSN of its commit."""

    final_lsn: int
    commit_timestamp: str
    xid: int


@value(frozen=True, slots=True)
class CommitMessage:
    """The end of a transaction; its commit record spans ``commit_lsn`` to ``end_lsn``."""

    commit_lsn: int
    end_lsn: int
    commit_timestamp: str


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """The description of a relation for the messages after it; it replaces any earlier one with the same id."""

    relation: Relation


@value(frozen=True, slots=True)
class RowMessage:
    """A change of a row of a relation. The row is read by a :class:`~flushtracker.wal.row_reader.RowReader`."""

    operation: Literal["Insert", "Update", "Delete"]
    relation_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """An origin, a type, or a message from ``pg_logical_emit_message``, which may arrive outside a transaction."""


Message: TypeAlias = Begin | CommitMessage | RelationMessage | RowMessage | TruncateMessage | OtherMessage

_ROW_TYPES: Final[dict[bytes, Literal["Insert", "Update", "Delete"]]] = {b"I": "Insert", b"U": "Update", b"D": "Delete"}
_ROW_HEADER_BYTES: Final = 5
_OTHERS: Final = frozenset({b"O", b"Y", b"M"})
_OTHER: Final = OtherMessage()
_REPLICA_IDENTITIES: Final[dict[int, Literal["default", "nothing", "full", "index"]]] = {
    ord("d"): "default",
    ord("n"): "nothing",
    ord("f"): "full",
    ord("i"): "index",
}


def decode(data: bytes, codec: str = UTF8) -> Message:
    """Decode one whole message, the payload of one ``XLogData`` of the replication stream, with names in ``codec``.

    >>> decode(bytes.fromhex("42 00000000016e2b68 000000e8d4a51000 000002e6"))
    Begin(final_lsn=23997288, commit_timestamp='2000-01-12T13:46:40.000000Z', xid=742)

    Raises:
        DecodeError: ``data`` is not exactly one message of protocol version 1.
    """
    tag = data[:1]
    operation = _ROW_TYPES.get(tag)
    if operation is not None and len(data) >= _ROW_HEADER_BYTES:
        return RowMessage(operation, int.from_bytes(data[1:_ROW_HEADER_BYTES], "big"), data)
    if tag in _OTHERS:
        return _OTHER
    known = _MESSAGES.get(tag)
    if known is None:
        raise MessageReader(data, "message", 0).error("one of the types B, C, D, I, M, O, R, T, U and Y")
    name, read = known
    reader = MessageReader(data, name, 1, codec)
    message = read(reader)
    if reader.position != len(data):
        raise reader.error("the end of the message")
    return message


def _begin(reader: MessageReader) -> Begin:
    final_lsn = reader.lsn("a commit LSN")
    if final_lsn == 0:
        raise reader.error("a commit LSN above 0", 1)
    return Begin(final_lsn, reader.timestamp(), reader.number(U32, "a transaction id"))


def _commit(reader: MessageReader) -> CommitMessage:
    reader.flags("flags, all of them 0", known=0)
    return CommitMessage(reader.lsn("a commit LSN"), reader.lsn("the LSN of the commit's end"), reader.timestamp())


def _relation(reader: MessageReader) -> RelationMessage:
    relation_id = reader.number(U32, "a relation id")
    schema, name = reader.schema(), reader.string("a relation name")
    identity = _REPLICA_IDENTITIES.get(reader.number(U8, "a replica identity"))
    if identity is None:
        raise reader.error("a replica identity: d, n, f or i", reader.position - 1)
    count, start = reader.count(I16, "a number of columns"), reader.position
    columns = tuple(_column(reader) for _ in range(count))
    if len({column.name for column in columns}) < count:
        raise reader.error("columns with different names", start, found="a name twice")
    return RelationMessage(Relation(relation_id, schema, name, identity, columns))


def _column(reader: MessageReader) -> Column:
    is_key = reader.flags("a column's flags, 0 or 1", known=1) == 1
    name = reader.string("a column name")
    type_oid = reader.number(U32, "a type OID")
    reader.number(I32, "a type modifier")
    return Column(name, type_oid, is_key)


def _cut_off_row(reader: MessageReader) -> NoReturn:
    raise reader.error("a relation id")


def _truncate(reader: MessageReader) -> TruncateMessage:
    count = reader.number(U32, "a number of relations")
    options = reader.flags("options from 0 to 3", known=3)
    # Checked first, so that a corrupt count does not loop 4 billion times.
    if count * U32.size > len(reader.data) - reader.position:
        raise reader.error(f"{count} relation ids")
    ids = tuple(reader.number(U32, "a relation id") for _ in range(count))
    return TruncateMessage(ids, cascade=bool(options & 1), restart_identity=bool(options & 2))


_MESSAGES: Final[dict[bytes, tuple[str, Callable[[MessageReader], Message]]]] = {
    b"B": ("Begin", _begin),
    b"C": ("Commit", _commit),
    b"R": ("Relation", _relation),
    b"I": ("Insert", _cut_off_row),
    b"U": ("Update", _cut_off_row),
    b"D": ("Delete", _cut_off_row),
    b"T": ("Truncate", _truncate),
}
