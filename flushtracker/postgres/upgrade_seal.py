"""The seal of an upgrade: a second slot on the old server, which only pg_upgrade can bring to the new one.

pg_upgrade creates the slots of the old cluster anew, at the end of the new one's WAL, before anybody can write there,
and only if nothing has committed on the old one past what each of them had confirmed. So a slot that it has kept misses
nothing. But a slot does not tell who has created it, and one that a person or a tool has created on the new server
since misses what was written before, on either. Nobody else creates the seal: its name has the old server's system
identifier. It is a copy of the slot at a moment when everything was confirmed.

The name also has a token, for one use. The source's entry in the registry has the same one until the old server is
captured again: a seal without it is of a server whose later changes were published from elsewhere, as from the server
of which this one is a copy.

An old seal does no harm. As long as it is there, pg_upgrade refuses if anything has committed since it was made.
"""

import re
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from flushtracker.postgres.connection import Connection, quote_ident, rows
from flushtracker.shapes.carried_binding import is_before
from flushtracker.wal.lsn import format_lsn, parse_lsn

_SEAL_NAME: Final = re.compile("flushtracker_[0-9a-f]{8}_from_[0-9]+_[0-9a-f]+")
_OWN: Final = "SELECT slot_name FROM pg_replication_slots WHERE starts_with(slot_name, %s) AND NOT active"
_DROP: Final = "SELECT pg_drop_replication_slot(%s)"
# With it, a name has at most 60 characters, of which PostgreSQL allows 63.
_TOKEN_BYTES: Final = 6
_COPY: Final = "SELECT (pg_copy_logical_replication_slot(%s, %s)).lsn::text"
# pg_upgrade sets relfrozenxid of all system catalogs to the next xid of the old cluster, but of large objects, whose
# rows it copies. VACUUM raises it, of those that have rows to freeze.
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

    ``confirmed_lsn`` is where its cluster begins, as far as others can write. Xids below ``own_xid`` were assigned
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
        """Whether pg_upgrade has written a row of the catalog."""
        return is_before(xid, self.own_xid)


class NewSeal(NamedTuple):
    """A seal that was just created, with what the slot had confirmed then."""

    name: str
    token: str
    confirmed_lsn: int


def create_seal(connection: Connection, slot: str, system_id: str) -> NewSeal:
    """Seal the slot of this server, in place of an earlier seal."""
    drop_seals(connection, slot)
    token = secrets.token_hex(_TOKEN_BYTES)
    name = f"{seal_prefix(slot)}{system_id}_{token}"
    ((lsn,),) = rows(connection, _COPY, (slot, name))
    return NewSeal(name, token, parse_lsn(lsn))


def drop_seals(connection: Connection, slot: str) -> None:
    """Drop the slot's seals, if there are any."""
    for (name,) in rows(connection, _OWN, (seal_prefix(slot),)):
        rows(connection, _DROP, (name,))


def read_seal(
    connection: Connection, slot: str, publication: str, *, system_id: str, confirmed_lsn: int
) -> UpgradeSeal | None:
    """The seal of another server than this one, which has ``system_id``; ``None`` if there is none, or several.

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
        arguments = (name, format_lsn(confirmed_lsn), quote_ident(publication))
        ((count,),) = rows(connection, _MISSED, arguments)
        misses_changes = count > 0
    old_xid = frozen_xid if is_before(frozen_xid, own_xid) else own_xid
    sealed_from, _, token = name.removeprefix(prefix).partition("_")
    return UpgradeSeal(sealed_from, token, lsn, old_xid, own_xid, misses_changes)


def is_sealed(name: str, names: Iterable[str]) -> bool:
    """Whether a slot is a seal, of any slot, or has one among the ``names`` of slots.

    >>> names = ("shapes", "flushtracker_93dba512_from_7301_d4a1", "audit")
    >>> [is_sealed(name, names) for name in names]
    [True, True, False]
    """
    prefix = seal_prefix(name)
    return _SEAL_NAME.fullmatch(name) is not None or any(each.startswith(prefix) for each in names)


def seal_prefix(slot: str) -> str:
    """The beginning of the names of a slot's seals.

    >>> seal_prefix("shapes")
    'flushtracker_93dba512_from_'
    """
    return f"flushtracker_{zlib.crc32(slot.encode()):08x}_from_"
