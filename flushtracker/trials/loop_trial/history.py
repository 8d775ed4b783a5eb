"""``History``: what the clients of a trial did and saw, and which promises of the loop that breaks.

The clients know only what they have written. Each transaction moves money between accounts, so that their sum stays the
same, and adds a few rows with its number to a ledger, which are never changed. After its commit it asks for the end of
the WAL. Once that LSN is acknowledged or confirmed, each shape must have the rows of the transaction.

Reads must show whole transactions: all rows of a number or none, and the sum of the accounts. They must never lose what
an earlier read has shown, and never show what was rolled back. If the reply to a commit is lost, both results are
allowed until a read shows the transaction.

Clients over HTTP may be shown transactions before the log has them. They too must see whole transactions and lose none,
and the log must have them in the end. Each client is told up to where it has everything.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from flushtracker.wal.lsn import format_lsn

Rule = Literal["slot", "ack", "durable", "whole", "forward", "exact", "live", "fold", "http"]

RULES: Final[Mapping[Rule, str]] = {
    "slot": "the slot is never confirmed past the ack",
    "ack": "acks only rise",
    "durable": "what is acknowledged or confirmed is in each shape that it concerns",
    "whole": "a read of a shape has whole transactions",
    "forward": "what a read has shown, the next one shows, too",
    "exact": "a shape has all that was committed, and nothing that was rolled back",
    "live": "in the end everything is confirmed",
    "fold": "in the end each shape has the rows of its query",
    "http": "all that also holds for clients of servers with and without a tail",
}

Outcome = Literal["running", "committed", "rolled back", "unknown"]
Parts = frozenset[int]
"""The numbers of some rows of a transaction, counted within it."""

_SHOWN: Final = 3


@dataclass(slots=True)
class ClientTransaction:
    """``parts`` has the rows for each shape of the ledger. ``end_lsn``, if known, is at or after the commit record."""

    parts: Mapping[str, Parts]
    outcome: Outcome = "running"
    end_lsn: int | None = None


@dataclass
class History:
    """Not thread-safe. ``violations`` has the first violation of each rule."""

    total: int
    """The sum of the accounts."""
    first_lsn: int
    """Where the slot began."""
    transactions: dict[int, ClientTransaction] = field(default_factory=dict)
    violations: dict[Rule, str] = field(default_factory=dict)
    ack_lsn: int = -1
    confirmed_lsn: int = -1
    reads: int = 0
    http_reads: int = 0
    _shown: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _shown_over_http: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def committed(self) -> int:
        """The number of transactions that are known to have committed."""
        # A copy, which is made at once: others may begin transactions meanwhile.
        return sum(each.outcome == "committed" for each in [*self.transactions.values()])

    def violate(self, rule: Rule, fact: str) -> None:
        """Record a violation, unless the rule already has one."""
        self.violations.setdefault(rule, fact)

    def observe_slot(self, confirmed_lsn: int, ack_lsn: int | None) -> None:
        """Note a reading of the slot, and of the last ack, which was read after it."""
        if ack_lsn is not None:
            if ack_lsn < self.ack_lsn:
                self.violate("ack", f"the ack went back from {format_lsn(self.ack_lsn)} to {format_lsn(ack_lsn)}")
            self.ack_lsn = max(self.ack_lsn, ack_lsn)
        bound = max(self.first_lsn, self.ack_lsn + 1)
        if confirmed_lsn > bound:
            fact = f"the slot is at {format_lsn(confirmed_lsn)}, but may be at {format_lsn(bound)} at most"
            self.violate("slot", fact)
        self.confirmed_lsn = max(self.confirmed_lsn, confirmed_lsn)

    def observe_acks(self, ack_lsns: Sequence[int]) -> None:
        """Check all acks of the table, in the order in which they were made."""
        for before, after in pairwise(ack_lsns):
            if after <= before:
                self.violate("ack", f"the ack {format_lsn(after)} follows {format_lsn(before)}")

    def observe_ledger(self, shape_id: str, rows: Iterable[tuple[int, int]]) -> None:
        """Note a read of a shape of the ledger, which must come after that of the slot and the ack.

        ``rows`` has the transaction and the part of each row.
        """
        self.reads += 1
        found = _by_number(rows)
        for rule, fact in self._wrong(shape_id, found, self._shown[shape_id]):
            self.violate(rule, fact)
        covered_lsn = max(self.ack_lsn, self.confirmed_lsn - 1)
        if missing := self._missing(shape_id, found, covered_lsn):
            fact = f"{_numbers(missing)} is acknowledged by {format_lsn(covered_lsn)}, but not in {shape_id}"
            self.violate("durable", fact)

    def observe_over_http(self, shape_id: str, lsn: int, rows: Iterable[tuple[int, int]]) -> None:
        """Note what a client of a shape of the ledger shows, which was told that this is everything up to ``lsn``."""
        self.http_reads += 1
        found = _by_number(rows)
        for _, fact in self._wrong(shape_id, found, self._shown_over_http[shape_id]):
            self.violate("http", f"over HTTP, {fact}")
        if missing := self._missing(shape_id, found, lsn):
            fact = f"over HTTP, {shape_id} lacks {_numbers(missing)}, but should have everything up to"
            self.violate("http", f"{fact} {format_lsn(lsn)}")

    def observe_accounts(self, balances: Sequence[int], count: int, *, over_http: bool = False) -> None:
        """Note a read of the accounts' shape; ``count`` accounts exist."""
        self.http_reads += over_http
        self.reads += not over_http
        if (len(balances), sum(balances)) != (count, self.total):
            fact = f"{len(balances)} accounts have {sum(balances)}, but {count} always have {self.total}"
            self.violate("http" if over_http else "whole", f"over HTTP, {fact}" if over_http else fact)

    def end(self) -> None:
        """Check that nothing is missing; all writes must be confirmed, and each shape of the ledger read after that."""
        for shape_id in sorted({name for each in self.transactions.values() for name in each.parts}):
            shown = self._shown[shape_id]
            missing = [n for n, each in self._concerning(shape_id) if each.outcome == "committed" and n not in shown]
            if missing:
                self.violate("exact", f"{shape_id} lacks {_numbers(missing)}, which the server has committed")
            if lost := self._shown_over_http[shape_id] - shown:
                self.violate("http", f"over HTTP, {shape_id} has shown {_numbers(lost)}, which its log never got")

    def _concerning(self, shape_id: str) -> Iterable[tuple[int, ClientTransaction]]:
        return ((number, each) for number, each in self.transactions.items() if each.parts.get(shape_id))

    def _missing(self, shape_id: str, found: Mapping[int, list[int]], covered_lsn: int) -> list[int]:
        return [
            number
            for number, each in self._concerning(shape_id)
            if each.end_lsn is not None and each.end_lsn <= covered_lsn and number not in found
        ]

    def _wrong(self, shape_id: str, found: Mapping[int, list[int]], shown: set[int]) -> Iterator[tuple[Rule, str]]:
        """Yield what the rows contradict, and add them to what was ``shown``."""
        for number, parts in found.items():
            transaction = self.transactions.get(number)
            if transaction is None or transaction.outcome == "rolled back":
                yield "exact", f"{shape_id} has rows of transaction {number}, which never committed"
            elif sorted(parts) != (expected := sorted(transaction.parts.get(shape_id, ()))):
                fact = f"{shape_id} has {len(parts)} rows of transaction {number}, which has {len(expected)} for it"
                yield "whole", fact
        if lost := shown - found.keys():
            yield "forward", f"{shape_id} has shown {_numbers(lost)}, and shows it no more"
        shown.update(found)


def _by_number(rows: Iterable[tuple[int, int]]) -> Mapping[int, list[int]]:
    """The parts of each transaction."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, part in rows:
        found[number].append(part)
    return found


def _numbers(found: Iterable[int]) -> str:
    numbers = sorted(found)
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"transaction {', '.join(map(str, numbers[:_SHOWN]))}{more}"
