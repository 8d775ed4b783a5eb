"""Finds columns that no shape has, because they are generated and the publication does not send them.

A stored generated column is sent if the publication says so (since PostgreSQL 18), as one created by capture does. A
virtual one is never sent.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from flushtracker.postgres.catalog import IS_SENT
from flushtracker.postgres.connection import Connection, rows
from flushtracker.shapes.item_key import quoted
from flushtracker.shapes.table_binding import dotted
from flushtracker.wal.changes import TableName

logger = logging.getLogger(__name__)

PUBLISHES_SINCE: Final = 180_000
"""The first server version whose publications can have stored generated columns."""

_MOST_ASKED: Final = 10_000
"""Tables may be created and dropped without end, so only this many are remembered."""

# A missing publication will be created with stored ones.
_LEFT_OUT: Final = f"""
SELECT n.nspname, c.relname, a.attname, a.attgenerated = 's' AND %(publishes)s
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))
  AND a.attnum > 0 AND NOT a.attisdropped AND NOT {IS_SENT}
  AND NOT (a.attgenerated = 's' AND %(publishes)s
    AND NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %(publication)s))
ORDER BY n.nspname, c.relname, a.attnum
"""  # noqa: S608  a constant


def left_out_columns(connection: Connection, publication: str | None, tables: Collection[TableName]) -> Iterator[str]:
    """For each table with such columns, what shapes without ``columns`` lack, and a remedy."""
    if not tables:
        return
    schemas, names = zip(*sorted(tables), strict=True)
    asked = {
        "schemas": list(schemas),
        "names": list(names),
        "publication": publication,
        "publishes": connection.server_version >= PUBLISHES_SINCE,
    }
    found = defaultdict[tuple[TableName, bool], list[str]](list)
    for schema, name, column, can_be_sent in rows(connection, _LEFT_OUT, asked):
        found[(schema, name), can_be_sent].append(column)
    for (table, can_be_sent), columns in found.items():
        what = f"shapes on {dotted(table)} lack its generated columns {', '.join(columns)}: "
        if can_be_sent and publication is not None:
            yield (
                f"{what}publication {publication} does not send them; before shapes are added, ALTER PUBLICATION "
                f"{quoted(publication)} SET (publish_generated_columns = stored); this ends shapes "
                "without columns that exist on tables with such columns, which then begin again with flushtracker "
                "resync"
            )
        else:
            yield f"{what}PostgreSQL does not send them; compute them from the other columns where shapes are read"


class LeftOutLog:
    """Logs what shapes on tables lack, once per table and connection."""

    def __init__(self, connection: Connection, publication: str) -> None:
        self._connection, self._publication = connection, publication
        self._asked = set[TableName]()

    def note(self, tables: Collection[TableName]) -> None:
        """Note that shapes without ``columns`` are added on these tables."""
        new = set(tables) - self._asked
        for text in left_out_columns(self._connection, self._publication, new):
            logger.warning("columns left out: %s", text)
        self._asked = new | (self._asked if len(self._asked) < _MOST_ASKED else set())
