"""The seal of an upgrade: a second slot on the old server, which only pg_upgrade can bring to the new one.

pg_upgrade recreates the slots of the old cluster at the end of the new one's WAL, before anyone can write there. It
does so only if nothing has committed on the old one past each slot's confirmed position. So a slot kept by it misses
nothing. But a slot does not show who created it, and one created on the new server later misses everything written
before. Nothing else creates the seal: its name has the old server's system identifier. It is a copy of the slot at a
moment when everything was confirmed.

The name also has a single-use token. The source's registry entry has the same token until the old server is captured
again. A seal with another token is from a server whose later changes were published elsewhere, for example from this
server's original.

An old seal does no harm: while it exists, pg_upgrade refuses if anything has committed since it was created.
"""

import re
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from flushtracker.postgres.connection import Connection, rows
from flushtracker.shapes.item_key import quoted
from flushtracker.wal.lsn import format_lsn, parse_lsn
from flushtracker.wal.xid import is_before

_SEAL_NAME: Final = re.compile("flushtracker_[0-9a-f]{8}_from_[0-9]+_[0-9a-f]+")
_OWN: Final = "SELECT slot_name FROM pg_replication_slots WHERE starts_with(slot_name, %s) AND NOT active"
_DROP: Final = "SELECT pg_drop_replication_slot(%s)"
# With it, a name has at most 60 characters; PostgreSQL allows 63.
_TOKEN_BYTES: Final = 6
_COPY: Final = "SELECT (pg_copy_logical_replication_slot(%s, %s)).lsn::text"
# pg_upgrade sets relfrozenxid of all system catalogs to the old cluster's next xid, except for large objects, whose
# rows it copies. VACUUM raises it for those that have rows to freeze.
_SEAL: Final = """
SELECT slot_name, confirmed_flush_lsn::text, catalog_xmin::text::bigint, (
  SELECT relfrozenxid::text::bigint FROM pg_class
  WHERE oid < 16384 AND relkind = 'r' AND relname NOT LIKE 'pg_largeobject%%' ORDER BY age(relfrozenxid) DESC LIMIT 1
)
FROM pg_replication_slots
WHERE starts_with(slot_name, %s) AND NOT starts_with(slot_name, %s) AND plugin = 'pgoutput'
  AND database = current_database() AND NOT temporary AND wal_status <> 'lost' AND confirmed_flush_lsn IS NOT NULL
"""
# One transaction is enough: there may be as many as the new server has written.
_MISSED: Final = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
  %s, %s::pg_lsn, 1, 'proto_version', '1', 'publication_names', %s
)
"""


@dataclass(frozen=True, slots=True)
class UpgradeSeal:
    """The seal that pg_upgrade has brought from the server ``system_id``, with its ``token``.

    ``confirmed_lsn`` is where the new cluster's WAL begins for other writers. Xids below ``own_xid`` were assigned
    before that: up to ``old_xid`` on the old server, and then by pg_upgrade. ``misses_changes``: the slot itself begins
    later, after changes.
    """

    system_id: str
    token: str
    confirmed_lsn: int
    old_xid: int
    own_xid: int
    misses_changes: bool = False

    def is_carried(self, xid: int) -> bool:
        """Whether a catalog row with this xid was written by pg_upgrade."""
        return is_before(xid, self.own_xid)


class NewSeal(NamedTuple):
    """A new seal, with the slot's confirmed position."""

    name: str
    token: str
    confirmed_lsn: int


def create_seal(connection: Connection, slot: str, system_id: str) -> NewSeal:
    """Seal the slot of this server, replacing any earlier seal."""
    drop_seals(connection, slot)
    token = secrets.token_hex(_TOKEN_BYTES)
    name = f"{seal_prefix(slot)}{system_id}_{token}"
    ((lsn,),) = rows(connection, _COPY, (slot, name))
    return NewSeal(name, token, parse_lsn(lsn))


def drop_seals(connection: Connection, slot: str) -> None:
    for (name,) in rows(connection, _OWN, (seal_prefix(slot),)):
        rows(connection, _DROP, (name,))


def read_seal(
    connection: Connection, slot: str, publication: str, *, system_id: str, confirmed_lsn: int
) -> UpgradeSeal | None:
    """The seal of another server than this one, whose id is ``system_id``; ``None`` if there is none, or several.

    ``confirmed_lsn`` is the slot's own.
    """
    prefix = seal_prefix(slot)
    found = rows(connection, _SEAL, (prefix, f"{prefix}{system_id}_"))
    if len(found) != 1:
        return None
    ((name, seal_lsn, own_xid, frozen_xid),) = found
    lsn = parse_lsn(seal_lsn)
    misses_changes = False
    if lsn < confirmed_lsn:
        arguments = (name, format_lsn(confirmed_lsn), quoted(publication))
        ((count,),) = rows(connection, _MISSED, arguments)
        misses_changes = count > 0
    old_xid = frozen_xid if is_before(frozen_xid, own_xid) else own_xid
    sealed_from, _, token = name.removeprefix(prefix).partition("_")
    return UpgradeSeal(sealed_from, token, lsn, old_xid, own_xid, misses_changes)


def is_sealed(name: str, names: Iterable[str]) -> bool:
    """Whether a slot is a seal, or has one among the ``names`` of slots.

    >>> names = ("shapes", "flushtracker_93dba512_from_7301_d4a1", "audit")
    >>> [is_sealed(name, names) for name in names]
    [True, True, False]
    """
    prefix = seal_prefix(name)
    return _SEAL_NAME.fullmatch(name) is not None or any(each.startswith(prefix) for each in names)


def seal_prefix(slot: str) -> str:
    """The prefix of the names of a slot's seals.

    >>> seal_prefix("shapes")
    'flushtracker_93dba512_from_'
    """
    return f"flushtracker_{zlib.crc32(slot.encode()):08x}_from_"
