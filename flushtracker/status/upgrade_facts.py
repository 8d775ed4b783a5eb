"""``UpgradeFacts``: the facts that decide whether pg_upgrade keeps a slot, and what is missing for that."""

from collections.abc import Iterator
from typing import Annotated, Final

from flushtracker.config.units import bytes_text
from flushtracker.errors import PostgresError, listed
from flushtracker.status.capture_status import SlotStatus
from flushtracker.status.document import Lsn, Natural, StatusObject, about
from flushtracker.status.finding import Finding, Kind

KEEPS_SLOTS_SINCE: Final = 17
"""The first major version from which pg_upgrade keeps logical slots."""
FREE_A_SLOT: Final = "drop a slot that nobody needs, or raise max_replication_slots, which needs a restart"
_NOT_YET: Final = 1


class UpgradeFacts(StatusObject, frozen=True, rename={"version": "server_version"}):
    """The facts about a server and the WAL that may be unconfirmed."""

    version: Annotated[int, about("the server's major version")]
    is_standby: Annotated[bool, about("whether the server is a standby")]
    written_lsn: Annotated[Lsn | None, about("the end of the WAL, flushed or not; `null` on a standby")]
    open_transactions: Annotated[Natural, about("how many transactions are open that write")]
    prepared_transactions: Annotated[Natural, about("how many are prepared")]
    free_slots: Annotated[int, about("how many more slots the server may have")]
    other_slots: Annotated[
        tuple[str, ...],
        about(
            "logical slots of the whole server that are not confirmed up to there, or lost, and are neither seals nor "
            "sealed"
        ),
    ]
    sealed_lsn: Annotated[
        Lsn | None, about("where `capture --before-upgrade` has sealed the slot; `null` if it has not")
    ]


def upgrade_findings(facts: UpgradeFacts, slot: SlotStatus) -> Iterator[Finding]:
    """What keeps pg_upgrade from being safe, in the order in which to resolve it."""
    if facts.is_standby or facts.written_lsn is None:
        text = "the server is a standby, and pg_upgrade is run on its primary"
        yield _finding("upgrade_on_standby", text, "name the primary in postgres", PostgresError.exit_code)
        return
    if facts.version < KEEPS_SLOTS_SINCE:
        yield _finding(
            "upgrade_keeps_no_slots",
            f"pg_upgrade does not keep slots of PostgreSQL {facts.version}, only of {KEEPS_SLOTS_SINCE} and later: all "
            "shapes will begin again, with the same ids",
            "upgrade at any time; then start capture with --create --upgraded-from ID, with the system "
            "identifier of this server, which pg_controldata prints",
        )
        return
    if facts.open_transactions or facts.prepared_transactions:
        count, prepared = facts.open_transactions, facts.prepared_transactions
        yield _finding(
            "upgrade_has_writers",
            f"{count:,} transactions are open that write, and {prepared:,} are prepared",
            "stop the applications, and end what is open: SELECT pid, xact_start, query FROM pg_stat_activity WHERE "
            "backend_xid IS NOT NULL; SELECT * FROM pg_prepared_xacts",
        )
    confirmed_lsn = -1 if slot.confirmed_lsn is None else slot.confirmed_lsn
    # WAL that a sealed server writes by itself, for example at a checkpoint, is not confirmed, and a capture would drop
    # the seal.
    if facts.sealed_lsn is None and confirmed_lsn < facts.written_lsn:
        yield _finding(
            "upgrade_unconfirmed",
            f"the server has written {bytes_text(facts.written_lsn - max(confirmed_lsn, 0))} since what the slot has "
            "confirmed",
            "leave capture, track and the writers running until all of it is confirmed"
            + ("" if slot.is_active else "; capture is not connected: start it"),
        )
    if facts.other_slots:
        yield _finding(
            "upgrade_other_slots",
            f"pg_upgrade also refuses slots of others that are not confirmed, or lost: {listed(facts.other_slots)}",
            "let their consumers confirm everything, or drop them",
        )
    if facts.sealed_lsn is None and facts.free_slots < 1:
        yield _finding("upgrade_no_free_slot", "the server has no free slot for the seal", FREE_A_SLOT)
    if facts.sealed_lsn is None:
        yield _finding(
            "upgrade_not_sealed",
            "the slot is not sealed: after pg_upgrade nothing would prove that it misses nothing, and all shapes would "
            "begin again",
            "last of all, stop capture, and run flushtracker capture with --before-upgrade",
        )


def _finding(kind: Kind, text: str, remedy: str, exit_code: int = _NOT_YET) -> Finding:
    return Finding("upgrade", kind, text, remedy, exit_code)
