"""The seal of an upgrade: a second slot on the old server, which only pg_upgrade can bring to the new one.

pg_upgrade creates the slots of the old cluster anew, at the end of the new one's WAL, before anybody can write there,
and only if nothing has committed on the old one past what each of them had confirmed. So a slot that it has kept misses
nothing. But a slot does not tell who has created it, and one that a person or a tool has created on the new server
since misses what was written before, on either. Nobody else creates the seal: its name has the old server's system
identifier. It is a copy of the slot at a moment when everything was confirmed.

An old seal does no harm. As long as it is there, pg_upgrade refuses if anything has committed since it was made.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from psycopg2.extensions import quote_ident

from flushtracker.postgres.connection import Connection, rows
from flushtracker.shapes.carried_binding import is_before
from flushtracker.wal.lsn import format_lsn, parse_lsn

_DROP: Final = """
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE starts_with(slot_name, %s) AND NOT active
"""
_COPY: Final = "SELECT (pg_copy_logical_replication_slot(%s, %s)).lsn::text"
# pg_upgrade sets relfrozenxid of all system catalogs to the next xid of the old cluster, but of large objects, whose
# rows it copies. VACUUM raises it, of those that have rows to freeze.
_SEAL: Final = """
SELECT slot_name, confirmed_flush_lsn::text, catalog_xmin::text::bigint, (
  SELECT relfrozenxid::text::bigint FROM pg_class
  WHERE oid < 16384 AND relkind = 'r' AND relname NOT LIKE 'pg_largeobject%%' ORDER BY age(relfrozenxid) DESC LIMIT 1
)
FROM pg_replication_slots
WHERE starts_with(slot_name, %s) AND slot_name <> %s AND plugin = 'pgoutput' AND database = current_database()
  AND NOT temporary AND wal_status <> 'lost' AND confirmed_flush_lsn IS NOT NULL
"""
_MISSED: Final = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
  %s, %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s
)
"""


@dataclass(frozen=True, slots=True)
class UpgradeSeal:
    """The seal that pg_upgrade has brought from the server ``system_id``.

    ``confirmed_lsn`` is where its cluster begins, as far as others can write. Xids below ``own_xid`` were assigned
    before that: up to ``old_xid`` on the old server, and then by pg_upgrade. ``misses_changes``: the slot itself begins
    later, after changes.
    """

    system_id: str
    confirmed_lsn: int
    old_xid: int
    own_xid: int
    misses_changes: bool = False

    def is_carried(self, xid: int) -> bool:
        """Whether pg_upgrade has written a row of the catalog."""
        return is_before(xid, self.own_xid)


def create_seal(connection: Connection, slot: str, system_id: str) -> int:
    """Seal the slot of this server, in place of an earlier seal; returns what the slot had confirmed then."""
    drop_seals(connection, slot)
    ((lsn,),) = rows(connection, _COPY, (slot, seal_prefix(slot) + system_id))
    return parse_lsn(lsn)


def drop_seals(connection: Connection, slot: str) -> None:
    """Drop the slot's seals, if there are any."""
    rows(connection, _DROP, (seal_prefix(slot),))


def read_seal(
    connection: Connection, slot: str, publication: str, *, system_id: str, confirmed_lsn: int
) -> UpgradeSeal | None:
    """The seal of another server than this one, which has ``system_id``; ``None`` if there is none, or several.

    ``confirmed_lsn`` is the slot's own.
    """
    prefix = seal_prefix(slot)
    found = rows(connection, _SEAL, (prefix, prefix + system_id))
    if len(found) != 1:
        return None
    ((name, seal_lsn, own_xid, frozen_xid),) = found
    lsn = parse_lsn(seal_lsn)
    misses_changes = False
    if lsn < confirmed_lsn:
        arguments = (name, format_lsn(confirmed_lsn), quote_ident(publication, connection))
        ((count,),) = rows(connection, _MISSED, arguments)
        misses_changes = count > 0
    old_xid = frozen_xid if is_before(frozen_xid, own_xid) else own_xid
    return UpgradeSeal(name.removeprefix(prefix), lsn, old_xid, own_xid, misses_changes)


def seal_prefix(slot: str) -> str:
    """The beginning of the names of a slot's seals.

    >>> seal_prefix("shapes")
    'flushtracker_93dba512_from_'
    """
    return f"flushtracker_{zlib.crc32(slot.encode()):08x}_from_"
