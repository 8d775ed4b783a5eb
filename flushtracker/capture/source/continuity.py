"""Proves from a server's timeline history that its WAL continues the published history of a source.

A promoted standby has its primary's WAL up to the switch point, and its own after it. The source continues on it, with
its name and acks, if everything that readers may have of the source lies below the switch point: what was published,
acknowledged, or used as the source's start. Anything beyond was lost by the failover: readers have transactions that no
server has, and would mistake the new primary's transactions at the same LSNs for them.

Only a history can prove that. So it is recorded with the source, and a server continues the source if its own history
includes the recorded one. Two standbys promoted to the same timeline number have different histories if they left the
primary at different places.

A server created by pg_upgrade has another identifier and a new history. There a seal proves the same, unless the old
server was captured after it was sealed.
"""

from typing import NamedTuple

from flushtracker.capture.wire.history_check import TransactionIdentity
from flushtracker.errors import SlotError
from flushtracker.events.registry_events import SourceEntry
from flushtracker.postgres.upgrade_seal import UpgradeSeal
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.timeline_history import TimelineHistory
from flushtracker.wal.xid import is_before


class SlotPositions(NamedTuple):
    """The slot's position, the end of the server's WAL once this process held the slot, and the seal of an upgrade."""

    confirmed_lsn: int
    wal_end: int
    seal: UpgradeSeal | None = None


_NEW_EPOCH = "start with --new-epoch, with which all shapes begin again under a new source"


def check_continues(source: str, recorded: TimelineHistory, server: TimelineHistory, *, known_lsn: int) -> int | None:
    """Check that the server's WAL continues the source's; return the switch point if it is on a later timeline.

    ``known_lsn`` is the greatest LSN that was published, acknowledged, or used as the source's start.

    Raises:
        SlotError: it does not.
    """
    if server == recorded:
        return None
    switch = server.switch_from(recorded)
    if switch is None:
        raise SlotError(
            f"source {source} was captured on timeline {_described(recorded)}, but the server is on timeline "
            f"{_described(server)}, which does not continue it: it is an old primary, or another standby was promoted "
            f"since. Connect capture to the primary that replaced it. If this server is to be the primary, {_NEW_EPOCH}"
        )
    if known_lsn >= switch:
        raise SlotError(
            f"source {source}: the server was promoted to timeline {server.timeline} and has timeline "
            f"{recorded.timeline} up to {format_lsn(switch)}, but up to {format_lsn(known_lsn)} was published or "
            "acknowledged: the failover has lost transactions that shapes have. To go on without these, "
            f"{_NEW_EPOCH}"
        )
    return switch


def check_claimed(source: str, claimed: TimelineHistory, server: TimelineHistory) -> None:
    """Check that the server is on the timeline to which a capture is taking the source over, or on a later one.

    Otherwise a restarted capture of the old primary would fence the one that waits for its end.

    Raises:
        SlotError: it is not.
    """
    if server != claimed and server.switch_from(claimed) is None:
        raise SlotError(
            f"source {source}: a capture is taking it over to timeline {_described(claimed)}, but the server is on "
            f"timeline {_described(server)}, which does not continue that: it is an old primary, or another standby "
            "was promoted. Connect capture to the primary that replaced it, on which the takeover goes on, or ends "
            f"if it lacks something. If that server is lost, {_NEW_EPOCH}"
        )


def check_slot(source: str, *, switch: int, confirmed_lsn: int, safe_lsn: int) -> None:
    """Check the slot of a promoted server: it must send everything that is not acknowledged.

    ``safe_lsn`` is the greatest LSN up to which everything was acknowledged, or committed before the source began.

    Raises:
        SlotError: it was created too late.
    """
    if confirmed_lsn > min(switch, safe_lsn + 1):
        raise SlotError(
            f"source {source}: the server was promoted at {format_lsn(switch)}, and its slot begins at "
            f"{format_lsn(confirmed_lsn)}, but only changes up to {format_lsn(max(safe_lsn, 0))} are acknowledged: the "
            "failover has lost the slot, and another one was created, which lacks the changes in between. "
            f"If no standby has the old slot, {_NEW_EPOCH}"
        )


def check_upgraded(
    entry: SourceEntry,
    seal: UpgradeSeal,
    last_transaction: TransactionIdentity | None,
    *,
    confirmed_lsn: int,
    known_lsn: int,
    last_ack: int | None,
) -> None:
    """Check that the slot of a server created by pg_upgrade sends everything that was not published before.

    The ``seal`` proves that nothing committed on the old server past its slot's confirmed position
    (:mod:`flushtracker.postgres.upgrade_seal`). Each capture of the old server clears the token in the source's
    ``entry``, so if the token is still the seal's, nothing was published since. The rest proves the same by positions
    and xids. ``confirmed_lsn`` is the slot's, and ``known_lsn`` as for :func:`check_continues`.

    Raises:
        SlotError: it is not proven.
    """
    begins = min(seal.confirmed_lsn, confirmed_lsn)
    if seal.token != entry.sealed:
        fact = "capture was started on the old server again, or for another one, after it had sealed this slot"
    elif seal.misses_changes:
        fact = f"changes were made before its slot begins, at {format_lsn(confirmed_lsn)}: another one was created"
    elif last_ack is None:
        fact = "nothing is acknowledged. If the ack table was lost, restore it"
    elif last_transaction is not None and last_transaction.lsn > last_ack:
        fact = (
            f"{last_transaction} was published, and only changes up to {format_lsn(last_ack)} are acknowledged. If the "
            "ack table was lost or replaced, restore it"
        )
    elif known_lsn >= begins:
        fact = f"its WAL begins at {format_lsn(begins)}, but up to {format_lsn(known_lsn)} was published"
    elif last_transaction is not None and not is_before(last_transaction.xid, seal.old_xid):
        fact = f"the old one had yet to assign xid {seal.old_xid}, but {last_transaction} was published: it was a copy"
    else:
        return
    raise SlotError(
        f"source {entry.source}: the server was upgraded from that with the system identifier {seal.system_id}, but "
        f"{fact}. To begin all shapes again, start with --upgraded-from {seal.system_id}"
    )


def _described(history: TimelineHistory) -> str:
    """The timeline, and where it left the previous one.

    >>> _described(TimelineHistory(1)), _described(TimelineHistory(2, ((1, 500),)))
    ('1', '2 (since 0/1F4)')
    """
    since = f" (since {format_lsn(history.switches[-1][1])})" if history.switches else ""
    return f"{history.timeline}{since}"
