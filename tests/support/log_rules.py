"""``LogRules``: the steps of a shape log that ``docs/model/ShapeLog.tla`` allows, as rules in Python.

The state is what is left of the model's for who sees only the table and the notifications: the last writer's claim and
batch, each shape's rows, its snapshot, and its last notification. A step that the model allows in no state that looks
like this is an ``AssertionError``. ``tests/model.py`` compares the rules with TLC's graph of all states, both ways.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sortedcontainers import SortedSet


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...


Offset = TypeVar("Offset", bound=_Ordered)
"""Of a change; each offset is one row of the log."""


def _contains_nothing(_: object) -> bool:
    return False


@dataclass
class ShapeState(Generic[Offset]):
    """Of one shape. ``end`` is the last row that there was, folded or not; ``nothing`` at first."""

    end: Offset
    notified: Offset
    horizon: Offset
    """Up to where rows were folded."""
    rows: set[Offset] = field(default_factory=set)
    attempt: int = 0
    contains: Callable[[Offset], bool] = _contains_nothing

    def has(self, offset: Offset) -> bool:
        """Whether the log has the change, as a row or in a fold."""
        return offset in self.rows or offset <= self.horizon


class LogRules(Generic[Offset]):
    """A log of shapes, which is empty at first; ``nothing`` is an offset below all others.

    ``published`` has the changes of each shape that capture has published so far. ``steps`` counts those that were
    allowed. The shapes ``without_snapshot`` had no rows before their changes.
    """

    def __init__(self, nothing: Offset, without_snapshot: Collection[str] = ()) -> None:
        self._nothing = nothing
        self._without_snapshot = {*without_snapshot}
        self.claimed, self.batch, self.snapshots = 0, 0, 0
        self.published: dict[str, SortedSet] = {}
        self.shapes: dict[str, ShapeState[Offset]] = {}
        self.steps = 0

    def shape(self, shape_id: str) -> ShapeState[Offset]:
        return self.shapes.setdefault(shape_id, ShapeState(self._nothing, self._nothing, self._nothing))

    def _published(self, shape_id: str, after: Offset, until: Offset | None = None) -> Iterator[Offset]:
        """What was published after an offset, up to and including another one."""
        return iter(self.published.get(shape_id, SortedSet()).irange(after, until, (False, True)))

    def publish(self, shape_id: str, offsets: Collection[Offset]) -> None:
        """``Commit``: changes are published, maybe again."""
        self.published.setdefault(shape_id, SortedSet()).update(offsets)

    def claim(self, claim: int) -> None:
        """``Claim``: a writer starts, and takes the next claim."""
        assert claim == self.claimed + 1, f"claim {claim} follows {self.claimed}"
        self.claimed, self.batch = claim, 0
        self.steps += 1

    def append(self, claim: int, batch: int, rows: Mapping[str, Collection[Offset]]) -> None:
        """``Append``: the last writer appends the next changes of some shapes, without a gap."""
        assert claim, f"batch {batch} is appended without a claim"
        assert claim == self.claimed, f"the writer with claim {claim} appends, but {self.claimed} has claimed the log"
        assert batch > self.batch, f"batch {batch} is appended after {self.batch}"
        assert any(rows.values()), f"batch {batch} appends nothing"
        for shape_id, offsets in rows.items():
            self._extend(shape_id, offsets)
        self.batch = batch
        self.steps += 1

    def _extend(self, shape_id: str, offsets: Collection[Offset]) -> None:
        state, new = self.shape(shape_id), {*offsets}
        assert len(new) == len(offsets), f"shape {shape_id} gets an offset twice in one append"
        if not new:
            return
        first, last = min(new), max(new)
        assert state.end < first, f"shape {shape_id} gets {first} again: its log ends at {state.end}"
        missing = {*self._published(shape_id, state.end, last)} ^ new
        assert not missing, f"shape {shape_id} is appended up to {last}, but {min(missing)} is missing, or unpublished"
        state.rows |= new
        state.end = last

    def notify(self, shape_id: str, offset: Offset) -> None:
        """``NotifyAndCommit`` and ``ReadEnd``: everything up to the offset is in the log. It may be told again."""
        state = self.shape(shape_id)
        assert offset <= state.end, f"shape {shape_id} is notified up to {offset}, but its log ends at {state.end}"
        assert state.notified <= offset, f"the notification of {shape_id} went back from {state.notified} to {offset}"
        state.notified = offset
        self.steps += 1

    def replace(self, number: int) -> None:
        """The commits of snapshots and folds are numbered: each is made knowing the one before."""
        assert number == self.snapshots + 1, f"commit {number} of snapshots follows {self.snapshots}"
        self.snapshots = number

    def take_snapshot(self, shape_id: str, attempt: int, contains: Callable[[Offset], bool]) -> None:
        """``CommitSnapshot``: one that contains what the one before does, and what is folded."""
        state = self.shape(shape_id)
        assert state.attempt < attempt, f"snapshot {attempt} of {shape_id} follows {state.attempt}"
        for each in self.published.get(shape_id, ()):
            is_had = state.contains(each) or each <= state.horizon
            assert contains(each) or not is_had, f"snapshot {attempt} of {shape_id} lacks {each}, which was contained"
        state.attempt, state.contains = attempt, contains
        self.steps += 1

    def fold(self, shape_id: str, attempt: int, horizon: Offset) -> None:
        """``CommitFold``: the rows up to a later horizon, which the log has reached, become a snapshot."""
        state = self.shape(shape_id)
        assert state.attempt < attempt, f"fold {attempt} of {shape_id} follows {state.attempt}"
        is_known = state.attempt > 0 or shape_id in self._without_snapshot
        assert is_known, f"{shape_id} is folded before its snapshot"
        assert state.horizon < horizon, f"the horizon of {shape_id} went from {state.horizon} to {horizon}"
        assert horizon <= state.end, f"{shape_id} is folded up to {horizon}, but its log ends at {state.end}"
        late = [each for each in self._published(shape_id, horizon) if state.contains(each)]
        assert not late, f"{shape_id} is folded up to {horizon}, but its snapshot contains {late[0]}"
        state.rows = {each for each in state.rows if not each <= horizon}
        state.attempt, state.horizon = attempt, horizon
        state.contains = lambda each: each <= horizon
        self.steps += 1
