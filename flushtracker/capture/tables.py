"""``Tables``: what capture asks the server, over an ordinary connection next to the stream."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from flushtracker.capture.start_visibility import Transactions
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import TableBinding


class Tables(Transactions, Protocol):
    """Queries to the server; each raises ``PostgresUnavailableError`` if the connection is lost."""

    def wal_end(self) -> int:
        """The current end of the WAL: everything sent so far committed before it."""

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, TableBinding]:
        """The definition, completed from the catalog, and its table as it is now; raises ``ShapeError``."""

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        """The OIDs of a table's partitioned ancestors, as of the committed transaction ``xid``."""

    def bindings(self, oids: Iterable[int]) -> Mapping[int, TableBinding]:
        """The tables with these OIDs as they are now, by OID; one that was dropped is left out."""

    def has_rows(self, oid: int) -> bool:
        """Whether a table has, or has had, rows; never ``False`` for one that was attached with rows in it."""

    def check_publication(self) -> str:
        """The publication's version; raises ``PostgresError`` if it does not publish everything."""
