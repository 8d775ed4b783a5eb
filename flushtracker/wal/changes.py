"""The parts of a transaction: relations, rows, changes, and the fragments that carry them.

Values are PostgreSQL's text. A row maps column names to text or ``None`` (SQL NULL). A column whose value is unknown
(an unchanged TOAST column, or a non-key column of a key-only old row) is absent from the mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.value import value

Row: TypeAlias = Mapping[str, str | None]
TableName: TypeAlias = tuple[str, str]
"""Schema and name, unquoted."""
Operation: TypeAlias = Literal["insert", "update", "delete", "truncate", "truncate_partition"]


FIRST_USER_TYPE: Final = 10_000
"""Types with smaller OIDs are built in and have the same OID in every database."""

TypeKind: TypeAlias = Literal["enum", "domain", "array", "composite", "range", "multirange", "base"]


@dataclass(frozen=True, slots=True)
class UserType:
    """A type that is not built in; pgoutput sends its OID, and the catalog has the rest.

    ``labels`` are an enum's, in order. ``inner`` is the base type of a domain or the element type of an array: another
    such type, or the OID of a built-in one.
    """

    oid: int
    schema: str
    name: str
    kind: TypeKind
    labels: tuple[str, ...] = ()
    inner: "UserType | int | None" = None

    def __str__(self) -> str:
        if isinstance(self.inner, UserType) and self.kind == "array":
            return f"{self.inner}[]"
        return f"{self.schema}.{self.name}"

    @property
    def unrestricted(self) -> "UserType | int | None":
        """The type itself, or the base type of a domain, however deeply nested."""
        found: UserType | int | None = self
        while isinstance(found, UserType) and found.kind == "domain":
            found = found.inner
        return found

    @property
    def enum(self) -> "UserType | None":
        """The enum, if the type is one, an array of one, or a domain over either."""
        found = self.unrestricted
        if isinstance(found, UserType) and found.kind == "array":
            found = found.inner
        return found if isinstance(found, UserType) and found.kind == "enum" else None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a relation, as pgoutput describes it. ``is_key`` means part of the replica identity.

    ``user_type`` is added from the catalog (:meth:`Relation.with_types`), if the type is not built in.
    """

    name: str
    type_oid: int
    is_key: bool = False
    user_type: UserType | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as of the changes that follow; under ``REPLICA IDENTITY FULL`` every column is flagged as key."""

    relation_id: int
    schema: str
    name: str
    replica_identity: Literal["default", "nothing", "full", "index"]
    columns: tuple[Column, ...]

    @property
    def table(self) -> TableName:
        return (self.schema, self.name)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_key)

    @property
    def unreadable_name(self) -> str | None:
        """What has a name that could not be decoded, for messages, such as ``its column 3``; ``None`` for nothing."""
        if not _is_text(self.schema + self.name):
            return "it"
        numbers = (number for number, column in enumerate(self.columns, 1) if not _is_text(column.name))
        return next((f"its column {number}" for number in numbers), None)

    def with_types(self, types: Mapping[int, UserType]) -> "Relation":
        if not any(column.type_oid in types for column in self.columns):
            return self
        columns = (replace(column, user_type=types.get(column.type_oid)) for column in self.columns)
        return replace(self, columns=tuple(columns))


@value(frozen=True, slots=True)
class Insert:
    relation: Relation
    offset: LogOffset
    new: Row


@value(frozen=True, slots=True)
class Update:
    """``old`` is ``None`` when the server sent no old row, because no column of the replica identity changed.

    Under a key-only replica identity ``old`` has the key columns alone; under FULL it is the whole row.
    """

    relation: Relation
    offset: LogOffset
    old: Row | None
    new: Row


@value(frozen=True, slots=True)
class Delete:
    """``old`` is the replica identity: its key columns, or under FULL the whole row."""

    relation: Relation
    offset: LogOffset
    old: Row


@value(frozen=True, slots=True)
class Truncate:
    """One truncated relation; a TRUNCATE of several relations becomes one ``Truncate`` for each.

    With ``lost_by``, a table's OID, the relation is a partition that has left that table, and only that table loses its
    rows.
    """

    relation: Relation
    offset: LogOffset
    lost_by: int | None = None


Change: TypeAlias = Insert | Update | Delete | Truncate


def _is_text(name: str) -> bool:
    """Whether a name from pgoutput could be decoded: other bytes are kept as surrogates."""
    return name.isascii() or not any("\udc80" <= character <= "\udcff" for character in name)


CHANGE_BYTES: Final = 80
"""Counted for each change: its numbers, its operation, and the table's name, which its key repeats."""


def change_bytes(change: Change) -> int:
    """The size by which transactions are cut into fragments.

    It is the bytes of its values in UTF-8, ``relation_row_bytes`` for each of its rows, and :data:`CHANGE_BYTES`.
    """
    if isinstance(change, Truncate):
        return CHANGE_BYTES
    per_row = relation_row_bytes(change.relation)
    match change:
        case Insert():
            return CHANGE_BYTES + per_row + values_bytes(change.new)
        case Delete():
            return CHANGE_BYTES + per_row + values_bytes(change.old)
        case Update():
            size = CHANGE_BYTES + per_row + values_bytes(change.new)
            return size if change.old is None else size + per_row + values_bytes(change.old)


def relation_row_bytes(relation: Relation) -> int:
    """The bytes counted for a row apart from its values: the name of each column, and one more."""
    return sum(1 + utf8_bytes(column.name) for column in relation.columns)


def utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def values_bytes(row: Row) -> int:
    """The bytes of a row's values in UTF-8; NULL has none."""
    return sum(utf8_bytes(text) for text in row.values() if text is not None)


@value(frozen=True, slots=True)
class Commit:
    """``commit_timestamp`` is ISO 8601 in UTC with microseconds; ``end_lsn`` is where the commit record ends."""

    commit_timestamp: str
    end_lsn: int


@value(frozen=True, slots=True)
class TransactionFragment:
    """Part of one transaction, or a whole one; ``commit`` is ``None`` on all but the last fragment.

    ``lsn`` is the transaction's commit LSN, which Begin already carries. ``xid`` is ``None`` for a keepalive.
    """

    xid: int | None
    lsn: int
    last_log_offset: LogOffset
    has_begin: bool
    commit: Commit | None
    changes: tuple[Change, ...] = ()

    @property
    def change_count(self) -> int:
        return len(self.changes)

    def cut(self, count: int) -> "tuple[TransactionFragment, TransactionFragment]":
        """Split off the first ``count`` changes; neither part may be empty."""
        first = replace(self, last_log_offset=self.changes[count - 1].offset, commit=None, changes=self.changes[:count])
        return first, replace(self, has_begin=False, changes=self.changes[count:])


@value(frozen=True, slots=True)
class LogItem:
    """One operation in a shape's log; ``key``, ``value`` and ``old_value`` are ``None`` where the operation has none.

    ``truncate_partition`` removes all rows whose keys begin with its key; the others concern one row, or all rows. A
    column that is absent from ``value`` is not NULL, but unchanged or unknown.
    """

    offset: LogOffset
    operation: Operation
    key: str | None = None
    value: Row | None = None
    old_value: Row | None = None
