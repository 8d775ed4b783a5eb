"""``DescribedRelations``: the relations that the server has described on one connection, while they may be changed.

The server describes a relation once, and it may get a shape later, so its description is kept. But tables may be
created and dropped without end. So the catalog is queried now and then for dropped ones. All changes of a dropped table
committed before its DROP, and so before the end of the WAL at the query. Once the stream is past that, the relation is
forgotten. A new table that reuses the OID is described again.

Descriptions may also take much memory at once: a table may have 1,600 columns. Then those of tables without shapes are
*trimmed* to the table's name. If such a table gets a shape, capture connects again, so that the server describes it.
"""

from collections.abc import Callable, Collection, Set
from typing import Final, Protocol

_MANY: Final = 1_000
_COLUMN_BYTES: Final = 300
"""A column in memory, with a name of 63 characters."""
_MOST_BYTES: Final = 64 << 20


class RelationCatalog(Protocol):
    """Queries to the server; each raises ``PostgresUnavailableError`` if the connection is lost."""

    def missing_relations(self, oids: Collection[int]) -> Set[int]: ...

    def insert_lsn(self) -> int:
        """The current end of the WAL, flushed or not: everything visible by now committed before it."""


class DescribedRelations:
    """Described relations by OID; at most twice as many as exist, plus 1,000."""

    def __init__(self) -> None:
        self._oids: set[int] = set()
        self._gone = frozenset[int]()
        self._gone_lsn = 0
        self._check_at = _MANY
        # Those with all columns, in the order in which they were described, and their bytes.
        self._whole: dict[int, int] = {}
        self._whole_bytes = 0
        self._trim_at = _MOST_BYTES
        self._trimmed: set[int] = set()

    def __contains__(self, oid: int) -> bool:
        return oid in self._oids

    def add(self, oid: int, columns: int) -> None:
        """The server has described a relation with so many columns."""
        self._oids.add(oid)
        self._trimmed.discard(oid)
        self._drop_whole(oid)
        self._whole[oid] = _COLUMN_BYTES * (1 + columns)
        self._whole_bytes += self._whole[oid]

    def is_trimmed(self, oid: int) -> bool:
        """Whether the relation's columns are not known any more."""
        return oid in self._trimmed

    def trim(self, is_needed: Callable[[int], bool]) -> list[int]:
        """The relations whose columns are to be forgotten now: those without shapes, if all take much memory."""
        if self._whole_bytes <= self._trim_at:
            return []
        trimmed = [oid for oid in self._whole if not is_needed(oid)]
        for oid in trimmed:
            self._drop_whole(oid)
        self._trimmed.update(trimmed)
        # Where most are needed, not all are looked at again for each one.
        self._trim_at = max(_MOST_BYTES, 2 * self._whole_bytes)
        return trimmed

    def _drop_whole(self, oid: int) -> None:
        self._whole_bytes -= self._whole.pop(oid, 0)

    def check(self, catalog: RelationCatalog) -> None:
        """Find out which relations were dropped, if there are many more than last time."""
        if self._gone or len(self._oids) < self._check_at:
            return
        self._gone = frozenset(catalog.missing_relations(self._oids))
        self._gone_lsn = catalog.insert_lsn()
        self._check_at = 2 * (len(self._oids) - len(self._gone)) + _MANY

    def take_dropped(self, lsn: int) -> frozenset[int]:
        """Forget and return the relations that no transaction that commits at ``lsn`` or later can change."""
        if not self._gone or lsn < self._gone_lsn:
            return frozenset()
        gone, self._gone = self._gone, frozenset()
        self._oids -= gone
        self._trimmed -= gone
        for oid in gone:
            self._drop_whole(oid)
        return gone
