"""Reads from a server whether pg_upgrade will keep its logical slots."""

from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.upgrade_seal import is_sealed, seal_prefix
from flushtracker.status.upgrade_facts import UpgradeFacts
from flushtracker.wal.lsn import parse_lsn

# pg_upgrade checks for any commit past a slot's confirmed position, published or not, for all slots of all databases.
_FACTS: Final = """
SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),
  CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn()::text END,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL), (SELECT count(*) FROM pg_prepared_xacts),
  current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)
"""
_SLOTS: Final = """
SELECT slot_name,
  wal_status = 'lost' OR coalesce(to_jsonb(pg_replication_slots) ->> 'invalidation_reason', '') <> ''
  OR confirmed_flush_lsn < pg_current_wal_insert_lsn()
FROM pg_replication_slots WHERE slot_type = 'logical' AND NOT temporary ORDER BY slot_name
"""
_SEALED: Final = """
SELECT confirmed_flush_lsn::text FROM pg_replication_slots
WHERE starts_with(slot_name, %s || (SELECT system_identifier FROM pg_control_system()) || '_')
AND confirmed_flush_lsn IS NOT NULL
"""


def read_upgrade_facts(connection: Connection, slot: str) -> UpgradeFacts:
    """The current facts about ``slot`` and the server; raises ``PostgresError``."""
    ((version, is_standby, insert_lsn, open_count, prepared_count, free_count),) = rows(connection, _FACTS)
    prefix = seal_prefix(slot)
    slots = {} if is_standby else dict(rows(connection, _SLOTS))
    others = tuple(
        name for name, is_refused in slots.items() if is_refused and name != slot and not is_sealed(name, slots)
    )
    sealed = rows(connection, _SEALED, (prefix,))
    return UpgradeFacts(
        version=version,
        is_standby=is_standby,
        written_lsn=None if insert_lsn is None else parse_lsn(insert_lsn),
        open_transactions=open_count,
        prepared_transactions=prepared_count,
        free_slots=free_count,
        other_slots=others,
        sealed_lsn=parse_lsn(sealed[0][0]) if sealed else None,
    )
