"""What the logs of shapes must hold: the server's transactions, as ``test_decoding`` prints them.

Their commit LSNs are those that ``pg_walinspect`` finds in the WAL, since ``test_decoding`` does not print them.
Nothing here comes from capture, its slot or the topics.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.local.postgres import LocalPostgres
from flushtracker.wal.lsn import format_lsn, parse_lsn
from tests.support.loop_workload import KEY, LoopShape, Matches
from tests.support.truth import TruthChange, parse_change

_SLOT: Final = "truth"
# A transaction that changes only catalogs, as one of autovacuum, is left out.
_CHANGES: Final = f"""
SELECT lsn::text, xid::text, data FROM pg_logical_slot_get_changes('{_SLOT}', NULL, NULL, 'skip-empty-xacts', 'on')
"""  # noqa: S608  our own names
_COMMITS: Final = """
SELECT xid::text, start_lsn::text FROM pg_get_wal_records_info('{}', pg_current_wal_flush_lsn())
WHERE resource_manager = 'Transaction' AND record_type LIKE 'COMMIT%'
"""


@dataclass(frozen=True)
class CommittedTransaction:
    """``items``: of each shape that the transaction concerns, the number of its items."""

    commit_lsn: int
    xid: int
    items: Counter[str]


@dataclass
class ServerTruth:
    """The transactions since :meth:`create`, which creates the slot; ``shapes`` are all that there are.

    With a failover slot, ``server`` may become a standby that was promoted: what it has given is on that, too, if the
    primary waits for the standby.
    """

    server: LocalPostgres
    shapes: Sequence[LoopShape]
    transactions: int = 0
    _end_lsn: int = 0

    def create(self, *, failover: bool = False) -> None:
        option = ", failover => true" if failover else ""
        slot = f"SELECT lsn::text FROM pg_create_logical_replication_slot('{_SLOT}', 'test_decoding'{option})"  # noqa: S608
        ((end,),) = self.server.execute("CREATE EXTENSION pg_walinspect", slot)
        self._end_lsn = parse_lsn(end)

    def read(self) -> list[CommittedTransaction]:
        """The transactions that have committed since the last call, in commit order."""
        ended: list[tuple[int, str, Counter[str]]] = []
        items = Counter[str]()
        for lsn, xid, text in self.server.execute(_CHANGES):
            if text == f"BEGIN {xid}":
                items = Counter[str]()
            elif text == f"COMMIT {xid}":
                # After a crash the slot may begin before what it has given already.
                if parse_lsn(lsn) > self._end_lsn:
                    ended.append((parse_lsn(lsn), xid, items))
            # Capture has the server commit a transaction with nothing but a message.
            elif not text.startswith("message: "):
                items.update(self._item_counts(parse_change(parse_lsn(lsn), text)))
        if not ended:
            return []
        commits = dict(self.server.execute(_COMMITS.format(format_lsn(self._end_lsn))))
        self._end_lsn = ended[-1][0]
        self.transactions += len(ended)
        return [CommittedTransaction(parse_lsn(commits[xid]), int(xid), items) for _, xid, items in ended]

    def _item_counts(self, changes: Sequence[TruthChange]) -> Counter[str]:
        """The items of each shape that these changes are, for those that they concern."""
        counts = Counter[str]()
        for change in changes:
            for shape in self.shapes:
                for table, matches in shape.logged.items():
                    if change.table == ("public", table):
                        counts[shape.id] += _item_count(matches, change)
        return +counts


def _item_count(matches: Matches, change: TruthChange) -> int:
    """How many items the change is in the log of a shape that has such rows of the table."""
    if change.operation == "truncate":
        return 1
    if change.operation == "delete":
        return int(matches(change.old or {}))
    new = change.new or {}
    if change.operation == "insert":
        return int(matches(new))
    # Without REPLICA IDENTITY FULL only a changed key comes with the old row.
    old = change.old or new
    held = [matches(old), matches(new)]
    # An update that changes the key is a delete and an insert.
    return sum(held) if old[KEY] != new[KEY] else int(any(held))
