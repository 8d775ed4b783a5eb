"""The parts of a transaction: relations, rows, changes, and the fragments that carry them.

Values are PostgreSQL's text. A row maps column names to text or ``None`` (SQL NULL). A column whose value is unknown
(an unchanged TOAST column, or a non-key column of a key-only old row) is absent from the mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flushtracker.wal.log_offset import LogOffset

Row: TypeAlias = Mapping[str, str | None]
TableName: TypeAlias = tuple[str, str]
"""Schema and name, unquoted."""
Operation: TypeAlias = Literal["insert", "update", "delete", "truncate"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a relation, as pgoutput describes it. ``is_key``: part of the replica identity."""

    name: str
    type_oid: int
    is_key: bool = False


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


@dataclass(frozen=True, slots=True)
class Insert:
    relation: Relation
    offset: LogOffset
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """``old`` is ``None`` when the server sent no old row, because no column of the replica identity changed.

    Under a key-only replica identity ``old`` has the key columns alone; under FULL it is the whole row.
    """

    relation: Relation
    offset: LogOffset
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """``old`` is the replica identity: its key columns, or under FULL the whole row."""

    relation: Relation
    offset: LogOffset
    old: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    """One truncated relation; a TRUNCATE of several relations becomes one ``Truncate`` for each."""

    relation: Relation
    offset: LogOffset


Change: TypeAlias = Insert | Update | Delete | Truncate


@dataclass(frozen=True, slots=True)
class Commit:
    """``commit_timestamp`` is ISO 8601 in UTC with microseconds; ``end_lsn`` is where the commit record ends."""

    commit_timestamp: str
    end_lsn: int


@dataclass(frozen=True, slots=True)
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

    @property
    def affected_relations(self) -> frozenset[TableName]:
        return frozenset(change.relation.table for change in self.changes)


@dataclass(frozen=True, slots=True)
class LogItem:
    """One operation in a shape's log; ``key``, ``value`` and ``old_value`` are ``None`` where the operation has none.

    A column that is absent from ``value`` is not NULL, but unchanged or unknown.
    """

    offset: LogOffset
    operation: Operation
    key: str | None = None
    value: Row | None = None
    old_value: Row | None = None
