"""``DescribedRelations``: which relations the server has described on one connection, as long as they may be changed.

The server describes a relation once, and it may get a shape later, so its description is kept; but tables may come and
go without end, and their descriptions with them. So now and then the catalog is asked which of them are gone. What has
changed one of these committed before its DROP, and so before the end of the WAL at that moment: once the stream is past
it, the relation is forgotten. A new table that gets its OID is described again.
"""

from collections.abc import Collection, Set
from typing import Final, Protocol

_MANY: Final = 1_000


class RelationCatalog(Protocol):
    """Queries to the server; each raises ``PostgresUnavailableError`` if the connection is lost."""

    def missing_relations(self, oids: Collection[int]) -> Set[int]:
        """Those of the OIDs that no relation has."""

    def insert_lsn(self) -> int:
        """The current end of the WAL, flushed or not: everything visible by now committed before it."""


class DescribedRelations:
    """By OID; memory is that of twice the relations that there are, and of 1,000."""

    def __init__(self) -> None:
        self._oids: set[int] = set()
        self._gone = frozenset[int]()
        self._gone_lsn = 0
        self._check_at = _MANY

    def __contains__(self, oid: int) -> bool:
        return oid in self._oids

    def add(self, oid: int) -> None:
        """The server has described a relation."""
        self._oids.add(oid)

    def check(self, catalog: RelationCatalog) -> None:
        """Find out which relations are gone, if there are many more than at the last time."""
        if self._gone or len(self._oids) < self._check_at:
            return
        self._gone = frozenset(catalog.missing_relations(self._oids))
        self._gone_lsn = catalog.insert_lsn()
        self._check_at = 2 * (len(self._oids) - len(self._gone)) + _MANY

    def take_gone(self, lsn: int) -> frozenset[int]:
        """Forget, and return, the relations that no transaction changes which commits at ``lsn`` or later."""
        if not self._gone or lsn < self._gone_lsn:
            return frozenset()
        gone, self._gone = self._gone, frozenset()
        self._oids -= gone
        return gone
