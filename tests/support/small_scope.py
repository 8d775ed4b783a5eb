"""All histories of a few transactions, through the code that decides an ack.

A *case* is a stream: which shapes each operation of each transaction concerns, and whether a shape is removed.
:class:`SmallScope` visits every state that the tracking job can reach with it, by breadth. A batch has any number of
the next fragments and any notifications. A driver starts again, or is killed before Spark commits; its batch need not
be the same again. Capture starts again, resends, and cuts transactions otherwise. A checkpoint is lost. Each step
runs ``ShapeGroup``, ``FragmentChain`` and ``SourceTrackers`` on packed state, as the job does. Equal states are visited
once, so that a few thousand stand for all the histories that lead through them, which are counted.

After each batch, by the plain rule: the ack covers the longest prefix of the transactions in which each has been read
whole, and is flushed by every shape that it concerns, removed shapes aside, or was acknowledged before.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

from flushtracker.tracking.chain_links import ChainLinks, Link
from flushtracker.tracking.fragment_chain import FragmentChain
from flushtracker.tracking.shape_events import FLUSHED, REMOVED, SENT, SENT_WITH_COMMIT, ShapeEvent, ShapeEvents
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import CHAIN, ChainReport, ReportRow, SourceTrackers
from flushtracker.wal.log_offset import LogOffset

_SOURCE: Final = "7301/1/shapes"
_FIRST_LSN: Final = 100
_LSN_STEP: Final = 100
_OP_STEP: Final = 2
_GROUPS: Final = 2


class Fragment(NamedTuple):
    """Operations ``first`` to ``last``, inclusive, of a transaction; the last one has the commit."""

    txn: int
    first: int
    last: int
    is_start: bool = False


class State(NamedTuple):
    """What a history has come to.

    Of the job: ``chain`` and ``groups``, packed, their last ``reports``, and the ack. Of the world: the fragments that
    were not ``read``, of which a killed batch has had ``published``; how many operations were read; how many of each
    shape's operations are ``flushed`` by notifications that the state has, and ``durable`` by all that were read; the
    same of the removal; and which faults are left.
    """

    chain: bytes
    groups: tuple[bytes, ...]
    reports: tuple[str, ...]
    ack_lsn: int
    unread: tuple[Fragment, ...]
    published: int
    read: int
    flushed: tuple[int, ...]
    durable: tuple[int, ...]
    is_removed: bool
    was_removed: bool
    resends: int
    losses: int


class Batch(NamedTuple):
    """How many fragments are read, the operations that each shape's flush covers (0 for none), and the removal."""

    fragments: int
    flushes: tuple[int, ...]
    removal: bool


@dataclass(frozen=True)
class Case:
    """``txns`` has for each transaction the shapes that each of its operations concerns.

    The shape 0 is removed after transaction ``removed_after``, which must be the last that concerns it.
    """

    txns: tuple[tuple[frozenset[int], ...], ...]
    shapes: int
    removed_after: int | None = None
    max_pending: int = 4096
    resends: int = 0
    losses: int = 0

    @cached_property
    def operations(self) -> list[tuple[int, int]]:
        """Transaction and operation, in order."""
        return [(txn, op) for txn, operations in enumerate(self.txns) for op in range(len(operations))]

    @cached_property
    def written(self) -> list[list[tuple[int, int]]]:
        """The operations that concern each shape."""
        return [
            [(txn, op) for txn, op in self.operations if shape in self.txns[txn][op]] for shape in range(self.shapes)
        ]

    @cached_property
    def needed(self) -> list[list[int]]:
        """For each shape and transaction, how many operations a flush must cover; 0 if none concerns the shape."""
        return [
            [max((count for count, (each, _) in enumerate(written, 1) if each == txn), default=0) for txn in self._all]
            for written in self.written
        ]

    @cached_property
    def operations_before(self) -> list[int]:
        """How many operations the transactions before each have; the last one is of all."""
        return [sum(len(operations) for operations in self.txns[:txn]) for txn in [*self._all, len(self.txns)]]

    @property
    def _all(self) -> range:
        return range(len(self.txns))

    @cached_property
    def lsns(self) -> list[int]:
        return [lsn_of(txn) for txn in self._all]

    @property
    def last_lsn(self) -> int:
        return self.lsns[-1]

    def fragments(self, first: int, *, joined: bool) -> tuple[Fragment, ...]:
        """The stream from transaction ``first``: a fragment to an operation, or to a transaction."""
        found = []
        for txn in range(first, len(self.txns)):
            last = len(self.txns[txn]) - 1
            found += [Fragment(txn, 0, last)] if joined else [Fragment(txn, op, op) for op in range(last + 1)]
        return (found[0]._replace(is_start=True), *found[1:]) if found else ()


def lsn_of(txn: int) -> int:
    """The commit LSN; of -1 the position before the first transaction."""
    return _FIRST_LSN + _LSN_STEP * txn


def all_cases(shapes: int, txns: int, operations: int, *, resends: int = 0, losses: int = 0) -> Iterator[Case]:
    """Every stream of so many transactions, without removals; of streams that differ by the shapes' names one.

    Shapes of one group are alike: those with even and those with odd numbers.
    """
    subsets = [frozenset(s for s in range(shapes) if mask >> s & 1) for mask in range(2**shapes)]
    seen = set()
    for flat in product(subsets, repeat=txns * operations):
        columns = [tuple(shape in each for each in flat) for shape in range(shapes)]
        name = tuple(tuple(sorted(columns[group::_GROUPS])) for group in range(_GROUPS))
        if name not in seen:
            seen.add(name)
            streams = tuple(flat[at : at + operations] for at in range(0, len(flat), operations))
            yield Case(streams, shapes, resends=resends, losses=losses)


def removals(cases: Iterable[Case]) -> Iterator[Case]:
    """Those that concern the shape 0, removed after its last transaction or a later one."""
    for case in cases:
        if case.written[0]:
            for txn in range(case.written[0][-1][0], len(case.txns)):
                yield replace(case, removed_after=txn)


@dataclass
class SmallScope:
    """The search of one case; ``states``, ``batches`` and ``histories`` count. Without ``exact`` an ack may lag."""

    case: Case
    exact: bool = True
    batches: int = 0
    _next: dict[State, list[State]] = field(default_factory=dict)
    _applied: dict[tuple[object, ...], tuple[bytes, str]] = field(default_factory=dict)
    _sent: dict[tuple[object, ...], tuple[ShapeEvent, ...]] = field(default_factory=dict)

    def search(self) -> None:
        """Visit every state; raises ``AssertionError`` with the history that leads to a wrong one."""
        first = self._first()
        came_from: dict[State, tuple[State, object] | None] = {first: None}
        layer = [first]
        while layer:
            following = []
            for state in layer:
                try:
                    steps = list(self._steps(state))
                    self._check_end(state)
                except AssertionError as error:
                    raise AssertionError(f"{error} {self.case}\n" + "\n".join(_path(came_from, state))) from error
                self._next[state] = [after for _, after in steps]
                for step, after in steps:
                    if after not in came_from:
                        came_from[after] = state, step
                        following.append(after)
            layer = following

    @property
    def states(self) -> int:
        return len(self._next)

    @property
    def histories(self) -> int:
        """How many ways lead from the beginning to a state from which nothing new follows."""
        ways: dict[State, int] = {}
        stack = [self._first()]
        while stack:
            state = stack[-1]
            missing = [after for after in self._next[state] if after not in ways]
            if missing:
                stack += missing
            else:
                ways[stack.pop()] = sum(map(ways.__getitem__, self._next[state])) or 1
        return ways[self._first()]

    # Steps

    def _first(self) -> State:
        case = self.case
        empty = tuple(0 for _ in range(case.shapes))
        return State(
            chain=b"",
            groups=(b"",) * _GROUPS,
            reports=("",) * (_GROUPS + 1),
            ack_lsn=-1,
            unread=case.fragments(0, joined=False),
            published=0,
            read=0,
            flushed=empty,
            durable=empty,
            is_removed=False,
            was_removed=False,
            resends=case.resends,
            losses=case.losses,
        )

    def _steps(self, state: State) -> Iterator[tuple[object, State]]:
        """Everything that may happen next, and what comes of it; without what changes nothing."""
        for batch in self._possible_batches(state):
            after = self._run(state, batch)
            if after != state:
                yield batch, after
            if after.ack_lsn > state.ack_lsn:
                yield ("killed before the commit", batch), self._killed(state, after)
        restarted = self._restarted(state)
        if restarted != state:
            yield "the driver starts again", restarted
        if state.resends:
            yield from self._resends(state)
        if state.losses and state.chain:
            yield from self._losses(state)

    def _possible_batches(self, state: State) -> Iterator[Batch]:
        flushes = [range(len(self.case.written[shape]) + 1) for shape in range(self.case.shapes)]
        removals = (False, True) if self.case.removed_after is not None else (False,)
        yield from map(Batch._make, product(range(len(state.unread) + 1), product(*flushes), removals))

    def _killed(self, state: State, after: State) -> State:
        """The ack is in the table, and the rest of the batch is not in the checkpoint."""
        durable = tuple(map(max, state.durable, after.durable))
        published = max(state.published, len(state.unread) - len(after.unread))
        known = state._replace(ack_lsn=after.ack_lsn, published=published, durable=durable)
        return self._restarted(known._replace(was_removed=after.was_removed))

    def _restarted(self, state: State) -> State:
        """A driver starts on the checkpoint; it may append an ack that the table lacks."""
        ack_lsn = self._acknowledge(state, state.reports)
        assert self._covered(ack_lsn) == self._covered(state.ack_lsn), "a batch was committed without its ack"
        return state._replace(ack_lsn=ack_lsn)

    def _resends(self, state: State) -> Iterator[tuple[object, State]]:
        """Capture is killed after any fragment, and starts at any position that the slot may have."""
        acked = self._covered(state.ack_lsn)
        for published in range(state.published, len(state.unread) + 1):
            for first, joined in product(range(acked + 1), (False, True)):
                unread = state.unread[:published] + self.case.fragments(first, joined=joined)
                if unread != state.unread:
                    step = f"capture resends from {first}, {joined=}, after {published} more"
                    yield step, state._replace(unread=unread, published=published, resends=state.resends - 1)

    def _losses(self, state: State) -> Iterator[tuple[object, State]]:
        """The checkpoint is lost; a new one begins at a start of capture, and reads all flushes again."""
        acked = self._covered(state.ack_lsn)
        fresh = self._first()
        for first, joined in product(range(acked + 1), (False, True)):
            yield (
                f"the checkpoint is lost; capture resends from {first}, {joined=}",
                fresh._replace(
                    ack_lsn=state.ack_lsn,
                    unread=self.case.fragments(first, joined=joined),
                    read=self.case.operations_before[acked],
                    durable=state.durable,
                    was_removed=state.was_removed,
                    resends=state.resends,
                    losses=state.losses - 1,
                ),
            )

    # A batch

    def _run(self, state: State, batch: Batch) -> State:
        self.batches += 1
        fragments = state.unread[: batch.fragments]
        chain, chain_report = self._chain(state, fragments)
        events = [self._events_of(group, fragments, batch) for group in range(_GROUPS)]
        applied = [self._group(state, group, each) for group, each in enumerate(events)]
        reports = (chain_report, *(report for _, report in applied))
        after = state._replace(
            chain=chain,
            groups=tuple(packed for packed, _ in applied),
            reports=reports,
            ack_lsn=self._acknowledge(state, reports),
            unread=state.unread[batch.fragments :],
            published=max(0, state.published - batch.fragments),
            read=max([state.read, *(self.case.operations_before[each.txn] + each.last + 1 for each in fragments)]),
            flushed=tuple(map(max, state.flushed, batch.flushes)),
            durable=tuple(map(max, state.durable, batch.flushes)),
            is_removed=state.is_removed or batch.removal,
            was_removed=state.was_removed or batch.removal,
        )
        self._check(state, after)
        return after

    def _chain(self, state: State, fragments: Sequence[Fragment]) -> tuple[bytes, str]:
        key = (state.chain, "" if state.chain else state.ack_lsn, tuple(fragments))
        if not fragments:
            return state.chain, state.reports[0]
        if key not in self._applied:
            start = LogOffset.last_of(state.ack_lsn) if state.ack_lsn >= 0 else None
            chain = FragmentChain.unpack(_SOURCE, state.chain) if state.chain else FragmentChain(_SOURCE, start)
            chain.extend(ChainLinks.of([self._link(each) for each in fragments]))
            self._applied[key] = chain.pack(), ChainReport(chain.last_seen_offset).to_json()
        return self._applied[key]

    def _link(self, fragment: Fragment) -> Link:
        txn, first, last, is_start = fragment
        lsn, before = lsn_of(txn), lsn_of(txn - 1)
        if first:
            follows = LogOffset(lsn, _OP_STEP * (first - 1))
        elif is_start or not txn:
            follows = LogOffset(before, 0)
        else:
            follows = LogOffset(before, _OP_STEP * (len(self.case.txns[txn - 1]) - 1))
        is_commit = last == len(self.case.txns[txn]) - 1
        return Link(follows, LogOffset(lsn, _OP_STEP * last), is_start, is_commit, "a.jsonl:1")

    def _events_of(self, group: int, fragments: Sequence[Fragment], batch: Batch) -> tuple[ShapeEvent, ...]:
        key = (group, fragments, batch.flushes[group::_GROUPS], batch.removal)
        if key not in self._sent:
            self._sent[key] = tuple(self._events(group, fragments, batch))
        return self._sent[key]

    def _events(self, group: int, fragments: Sequence[Fragment], batch: Batch) -> Iterator[ShapeEvent]:
        shapes = range(group, self.case.shapes, _GROUPS)
        for txn, first, last, _ in fragments:
            operations, lsn = self.case.txns[txn], lsn_of(txn)
            is_commit = last == len(operations) - 1
            for shape in shapes:
                concerns = [op for op in range(first, last + 1) if shape in operations[op]]
                if concerns or (is_commit and any(shape in each for each in operations)):
                    kind = SENT_WITH_COMMIT if is_commit else SENT
                    op = _OP_STEP * concerns[-1] if concerns else -1
                    yield ShapeEvent(_name(shape), kind, lsn, op, _OP_STEP * last)
        for shape in shapes:
            if covered := batch.flushes[shape]:
                txn, op = self.case.written[shape][covered - 1]
                yield ShapeEvent(_name(shape), FLUSHED, lsn_of(txn), _OP_STEP * op)
        if batch.removal and group == 0 and self.case.removed_after is not None:
            yield ShapeEvent(_name(0), REMOVED, lsn_of(self.case.removed_after), 0)

    def _group(self, state: State, group: int, events: tuple[ShapeEvent, ...]) -> tuple[bytes, str]:
        packed = state.groups[group]
        if not events:
            return packed, state.reports[1 + group]
        key = (packed, state.ack_lsn, events)
        if key not in self._applied:
            shapes = ShapeGroup.unpack(packed) if packed else ShapeGroup(LogOffset.before_all())
            limit = self.case.max_pending
            if state.ack_lsn >= 0:
                shapes.complete(LogOffset.last_of(state.ack_lsn), now_ms=0, max_pending=limit)
            shapes.apply(ShapeEvents.of(events), now_ms=0, max_pending=limit)
            self._applied[key] = shapes.pack(), shapes.report().to_json()
        return self._applied[key]

    def _acknowledge(self, state: State, reports: tuple[str, ...]) -> int:
        """The driver's step: a driver that starts on the checkpoint, and handles this batch."""
        key = (state.reports, reports, state.ack_lsn)
        if key not in self._applied:
            trackers = SourceTrackers(lambda _: None if state.ack_lsn < 0 else state.ack_lsn)
            trackers.apply(_rows(state.reports))
            trackers.apply(_rows(reports))
            for tracker in trackers.values():
                tracker.check_invariants()
            ack_lsn = trackers[_SOURCE].ack_lsn if _SOURCE in trackers else state.ack_lsn
            self._applied[key] = ack_lsn.to_bytes(8, "big", signed=True), ""
        return int.from_bytes(self._applied[key][0], "big", signed=True)

    # The plain rule

    def _check(self, before: State, after: State) -> None:
        covered, ack_lsn = self._covered(after.ack_lsn), after.ack_lsn
        assert ack_lsn >= before.ack_lsn, f"the ack went back from {before.ack_lsn} to {ack_lsn}"
        for txn in range(covered):
            assert self._is_done(txn, after.durable, is_removed=after.was_removed), (
                f"ack {ack_lsn} before transaction {txn} is durable"
            )
        if self.exact:
            expected = self._covered(before.ack_lsn)
            while expected < len(self.case.txns) and self._is_safe(expected, after):
                expected += 1
            assert covered == expected, f"ack {ack_lsn} covers {covered} transactions rather than {expected}"

    def _check_end(self, state: State) -> None:
        """Once all is read and flushed, all is acknowledged."""
        everything = tuple(len(written) for written in self.case.written)
        last = Batch(len(state.unread), everything, self.case.removed_after is not None)
        ack_lsn = self._run(state, last).ack_lsn
        assert ack_lsn == self.case.last_lsn, f"the last ack is {ack_lsn}"

    def _is_safe(self, txn: int, state: State) -> bool:
        is_read = self.case.operations_before[txn + 1] <= state.read
        return is_read and self._is_done(txn, state.flushed, is_removed=state.is_removed)

    def _is_done(self, txn: int, flushed: Sequence[int], *, is_removed: bool) -> bool:
        for shape, needed in enumerate(self.case.needed):
            if flushed[shape] < needed[txn]:
                removed_after = self.case.removed_after if is_removed and shape == 0 else None
                if removed_after is None or txn > removed_after:
                    return False
        return True

    def _covered(self, ack_lsn: int) -> int:
        return sum(map(ack_lsn.__ge__, self.case.lsns))


def _name(shape: int) -> str:
    return f"shape{shape}"


def _rows(reports: Sequence[str]) -> list[ReportRow]:
    names = (CHAIN, *map(str, range(_GROUPS)))
    return [ReportRow(_SOURCE, name, report) for name, report in zip(names, reports, strict=True) if report]


def _path(came_from: dict[State, tuple[State, object] | None], state: State) -> list[str]:
    steps = []
    while (step := came_from[state]) is not None:
        state = step[0]
        steps.append(str(step[1]))
    return steps[::-1]
