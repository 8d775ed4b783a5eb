"""``Tails``: the tails of all shapes that clients ask for, within a bound of memory.

They use the whole bound, so they also keep transactions that the log has long had. Otherwise each late client would
need a read of the log for its offset alone, and there may be thousands.

A shape that nobody has asked for in ``poller.FORGET_S`` has no tail, and its events need not be read:
:attr:`Tails.asked`. It does not matter which events are left out, nor when: the next one says what it follows.

Transactions that come during a round (``rounds``) are held back until it ends, unless the log already has later ones.

For the event loop. Only ``asked`` may be read by another thread.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from flushtracker.serve.handle import Handle
from flushtracker.serve.poller import FORGET_S
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.tail.shape_tail import ShapeTail, TailTransaction
from flushtracker.serve.tail.tail_link import incarnation_of, reached_by
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class TailPage:
    """The transactions that a client is shown next, up to ``tx``, which is its own place if there are none."""

    transactions: tuple[TailTransaction, ...]
    tx: int


_MOST_FOUND: Final = 100
"""Pages that are remembered for the next client at the same place, while the tails have all that is in them."""


class _Found(NamedTuple):
    """A page, with all that has decided about it besides its key; the objects are compared by identity."""

    tail: ShapeTail
    seen: SeenShape
    state: tuple[object, ...]
    page: TailPage | None


class Tails:
    """The tails take about ``memory_bytes``, besides a constant for each shape.

    ``holding`` returns the number of the round that holds back what is new, or ``None``.
    """

    def __init__(self, memory_bytes: int, holding: Callable[[], int | None] = lambda: None) -> None:
        self.asked: frozenset[ShapeKey] = frozenset()
        self.memory_bytes = self.resets = 0
        """About what all take; and how often a shape's tail was dropped."""
        self._most_bytes = memory_bytes
        self._holding = holding
        self._asked_s: dict[ShapeKey, float] = {}
        self._tails: dict[ShapeKey, ShapeTail] = {}
        self._found: dict[tuple[ShapeKey, tuple[str, int], int], _Found] = {}
        """By shape, handle and place."""

    def ask(self, key: ShapeKey, now_s: float) -> None:
        self._asked_s[key] = now_s
        if key not in self.asked:
            self.asked |= {key}

    def expire(self, now_s: float) -> None:
        """Forget the shapes that nobody asks for any more."""
        for key in [key for key, at_s in self._asked_s.items() if at_s + FORGET_S < now_s]:
            del self._asked_s[key]
            self.forget(key)
        self._found.clear()
        if len(self._asked_s) < len(self.asked):
            self.asked = frozenset(self._asked_s)

    def add(self, key: ShapeKey, event: ChangeColumns) -> bool:
        """Process an event; return whether there is another transaction of its shape, so that clients are to be
        woken.
        """
        if key not in self.asked:
            return False
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = ShapeTail(event)
        tail.hold_back(self._holding())
        before, drops, whole = tail.memory_bytes, tail.drops, tail.transactions
        is_new = tail.add(event)
        self.memory_bytes += tail.memory_bytes - before
        self.resets += tail.drops - drops
        if tail.transactions is not whole:
            self._found.clear()
        if self.memory_bytes > self._most_bytes:
            self._make_room()
        return is_new

    def forget(self, key: ShapeKey) -> None:
        """Drop the tail of a shape, also because an event of it could not be read, or is too large."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            self.memory_bytes -= tail.memory_bytes
            self._found.clear()

    def forget_all(self) -> None:
        """Drop all: the topic is no longer read from where it was read up to."""
        self._tails.clear()
        self._found.clear()
        self.memory_bytes = 0

    def page(self, seen: SeenShape, handle: Handle, place: int, most_bytes: int) -> TailPage | None:
        """What a client at ``place`` is shown, of about ``most_bytes``; ``None`` if only the log can tell.

        ``place`` is the last transaction that the client was shown, or a later cut.
        """
        tail = self._tails.get(_key(seen))
        if tail is None:
            return None
        upto = tail.shown_upto(self._holding())
        if upto is not None and seen.tx > upto:
            upto = None
        state = (tail.base, len(tail.transactions), tail.drops, tail.incarnation, upto, most_bytes)
        key = (_key(seen), handle.begun, place)
        found = self._found.get(key)
        if found is None or found.tail is not tail or found.seen is not seen or found.state != state:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            found = _Found(tail, seen, state, _page(tail, seen, handle, place, upto, most_bytes))
            self._found[key] = found
        return found.page

    def _make_room(self) -> None:
        """Halve the largest tails until an eighth is free, so that all of them are seldom looked at."""
        self._found.clear()
        for tail in sorted(self._tails.values(), key=lambda tail: tail.memory_bytes, reverse=True):
            before = tail.memory_bytes
            tail.shrink(before // 2)
            self.memory_bytes += tail.memory_bytes - before
            if self.memory_bytes <= self._most_bytes * 7 // 8:
                break

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state contradicts itself."""
        for tail in self._tails.values():
            tail.check_invariants()
        held = sum(tail.memory_bytes for tail in self._tails.values())
        if held != self.memory_bytes:
            raise AssertionError(f"memory_bytes is {self.memory_bytes}, but the tails have {held}")
        if not self._tails.keys() <= self.asked or self.asked != self._asked_s.keys():
            raise AssertionError("there is a tail that nobody has asked for")


def _page(
    tail: ShapeTail, seen: SeenShape, handle: Handle, place: int, upto: int | None, most_bytes: int
) -> TailPage | None:
    if not _is_of(tail, seen) or not _is_linked(tail, seen, handle, place):
        return None
    found, size = list[TailTransaction](), 0
    for transaction in _not_contained(tail.after(place, upto), seen):
        size += transaction.memory_bytes
        if found and size > most_bytes:
            break
        found.append(transaction)
    return TailPage(tuple(found), found[-1].tx_offset if found else place)


def _key(seen: SeenShape) -> ShapeKey:
    return seen.found.source, seen.shape_id


def _is_of(tail: ShapeTail, seen: SeenShape) -> bool:
    """Whether its rows are the shape's, with the columns and types that its clients are told."""
    schema = seen.facts.schema_digest
    return schema is not None and tail.schema == schema and tail.incarnation == incarnation_of(seen)


def _is_linked(tail: ShapeTail, seen: SeenShape, handle: Handle, place: int) -> bool:
    """Whether nothing is missing between what the client has and the tail's base.

    If the log has passed the client's place, it must have that transaction. Otherwise it was restored from an older
    copy. The log has every transaction that the tail itself has.
    """
    reached = reached_by(seen, handle, place)
    if reached is None or tail.base > LogOffset.last_of(reached):
        return False
    return seen.is_behind(place) or seen.proves(place) or tail.has(place)


def _not_contained(transactions: list[TailTransaction], seen: SeenShape) -> Iterator[TailTransaction]:
    """Those that are not in the rows of the shape's snapshot; the log leaves the others out, too."""
    snapshot = seen.found.snapshot
    for each in transactions:
        if snapshot is None or not snapshot.contains(each.tx_offset, each.xid):
            yield each
