"""``DescribedRelations``: the relations that the server has described on one connection, while they may be changed.

The server describes a relation once, and it may get a shape later, so its description is kept. But tables may be
created and dropped without end. So the catalog is queried now and then for dropped ones. All changes of a dropped table
committed before its DROP, and so before the end of the WAL at that moment: once the stream is past it, the relation is
forgotten. A new table that reuses the OID is described again.
"""

from collections.abc import Collection, Set
from typing import Final, Protocol

_MANY: Final = 1_000


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

    def __contains__(self, oid: int) -> bool:
        return oid in self._oids

    def add(self, oid: int) -> None:
        self._oids.add(oid)

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
        return gone
