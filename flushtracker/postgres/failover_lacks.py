"""What a slot lacks to survive a failover, according to the primary and each standby that capture may connect to.

Since PostgreSQL 17 a standby synchronizes the failover slots of its primary. A copy is lost at a promotion while it is
*temporary*, which cannot be seen on the primary; it becomes persistent once the slot has advanced past the start of the
copy. A former primary keeps its own slot, and no copy replaces that. So the standbys must be queried; capture knows
those among the hosts of its connection. One with a persistent copy is enough; but a host that is another primary is
always reported.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from psycopg import sql

from flushtracker.errors import PostgresError
from flushtracker.postgres.connection import Connection, limit_statements, rows
from flushtracker.shapes.item_key import quoted

_STATEMENT_TIMEOUT_S: Final = 5.0
_OTHER_PRIMARY: Final = "is another primary"
FAILOVER_SINCE: Final = 170_000
"""The first version of PostgreSQL that synchronizes slots to standbys."""
# The slot as JSON, because older servers do not have the column.
_PRIMARY: Final = """
SELECT pg_is_in_recovery(), (SELECT to_jsonb(s)->>'failover' FROM pg_replication_slots s WHERE slot_name = %(slot)s),
  coalesce(current_setting('synchronized_standby_slots', true), ''),
  EXISTS (SELECT FROM pg_replication_slots WHERE slot_type = 'physical')
"""
_UNCONNECTED: Final = """
SELECT trim(name), s.slot_name IS NOT NULL FROM unnest(string_to_array(%s, ',')) AS name
LEFT JOIN pg_replication_slots s ON s.slot_name = trim(name) AND s.slot_type = 'physical'
WHERE s.active IS NOT TRUE
"""
_STANDBY: Final = """
SELECT pg_is_in_recovery(),
  (SELECT CASE WHEN NOT synced THEN 'own' WHEN temporary THEN 'temporary' ELSE 'lasting' END
    FROM pg_replication_slots WHERE slot_name = %s),
  coalesce(current_setting('sync_replication_slots', true), 'off'), current_setting('hot_standby_feedback'),
  current_setting('primary_slot_name')
"""


def failover_lacks(
    connection: Connection, options: Mapping[str, str], slot: str, connect: Callable[[Mapping[str, str]], Connection]
) -> tuple[str, ...] | None:
    """What the slot lacks, in words; ``None`` if no failover is prepared: no standby is known, or the server is older
    than 17.

    ``options`` are those of ``connection``; with several hosts, the others are queried.

    Raises:
        PostgresError: the primary does not respond.
    """
    if connection.server_version < FAILOVER_SINCE:
        return None
    ((is_standby, failover, listed, has_physical_slot),) = rows(connection, _PRIMARY, {"slot": slot})
    hosts = list(_others(connection, options))
    if is_standby or failover is None or not (hosts or listed or has_physical_slot):
        return None
    return (*_primary_lacks(connection, slot, failover, listed), *_standbys_lack(hosts, slot, connect))


def _primary_lacks(connection: Connection, slot: str, failover: str, listed: str) -> Iterator[str]:
    if failover != "true":
        # The server refuses this while capture reads the slot.
        statement = f"ALTER_REPLICATION_SLOT {quoted(slot)} (FAILOVER true)"
        yield f"slot {slot} is no failover slot; stop capture, and over a replication connection: {statement}"
    if not listed:
        yield "synchronized_standby_slots is empty on the primary: it may send capture what no standby has"
    for name, exists in rows(connection, _UNCONNECTED, (listed,)):
        lack = f"no standby uses slot {name} of synchronized_standby_slots, for which the primary waits"
        # A copy of another primary's settings, for example by pg_basebackup or pg_rewind, names that one's slots.
        create = f"SELECT pg_create_physical_replication_slot({_literal(connection, name)})"
        yield lack if exists else f"{lack}, and which does not exist: {create}, or take it out of the setting"


def _standbys_lack(
    hosts: list[dict[str, str]], slot: str, connect: Callable[[Mapping[str, str]], Connection]
) -> list[str]:
    """Other primaries, and what each standby lacks, unless one has a copy of the slot that survives its promotion."""
    if not hosts:
        return ["no standby was asked: name all hosts in postgres"]
    primaries, lacks, is_one_ready = [], [], False
    for host in hosts:
        name = f"{host['host']} port {host.get('port', '5432')}"
        try:
            reason = _standby_lacks(host, slot, connect)
        except PostgresError as error:
            reason = f"does not answer: {error}"
        if reason is None:
            is_one_ready = True
        elif reason == _OTHER_PRIMARY:
            primaries.append(f"{name} {reason}")
        else:
            lacks.append(f"standby {name} {reason}")
    return primaries if is_one_ready else [*primaries, *lacks]


def _standby_lacks(
    host: Mapping[str, str], slot: str, connect: Callable[[Mapping[str, str]], Connection]
) -> str | None:
    with closing(connect(host)) as connection:
        limit_statements(connection, statement_timeout_s=_STATEMENT_TIMEOUT_S, lock_timeout_s=_STATEMENT_TIMEOUT_S)
        ((is_standby, copy, *settings),) = rows(connection, _STANDBY, (slot,))
        drop = f"SELECT pg_drop_replication_slot({_literal(connection, slot)})"
    if not is_standby:
        return _OTHER_PRIMARY
    if copy == "own":
        return (
            f"has a slot {slot} of its own, as one that was the primary, which no copy replaces; drop it there: {drop}"
        )
    # First, because without these it may have a copy that is no longer updated.
    if unset := list(_unset(*settings)):
        return f"lacks {' and '.join(unset)}"
    if copy == "lasting":
        return None
    if copy is None:
        return f"has no copy of slot {slot}: check its log, and that primary_conninfo names a dbname"
    return f"has a temporary copy of slot {slot}, which a promotion drops: it becomes persistent as acks advance"


def _literal(connection: Connection, name: str) -> str:
    return sql.Literal(name).as_string(connection)


def _unset(sync_replication_slots: str, hot_standby_feedback: str, primary_slot_name: str) -> Iterator[str]:
    if sync_replication_slots != "on":
        yield "sync_replication_slots = on"
    if hot_standby_feedback != "on":
        yield "hot_standby_feedback = on"
    if not primary_slot_name:
        yield "primary_slot_name"


def _others(connection: Connection, options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The options for each host except the connected one.

    >>> class Here:
    ...     class info:
    ...         host, port = "a", 5433
    >>> [each["host"] + ":" + each["port"] for each in _others(Here, {"host": "a,a,b", "port": "5432,5433,5434"})]
    ['a:5432', 'b:5434']
    """
    info: Any = connection.info
    hosts, ports = options.get("host", "").split(","), options.get("port", "5432").split(",")
    if len(hosts) < 2:
        return
    for host, port in zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=False):
        if (host, port) != (info.host, str(info.port)):
            yield {**options, "host": host, "port": port, "target_session_attrs": "any"}
