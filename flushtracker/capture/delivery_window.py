"""``DeliveryWindow``: the fragments that the broker has not confirmed yet, and the LSN up to which it has.

The broker confirms events of different topics in any order. A fragment counts as published once the broker has
confirmed all of its events *and* all earlier fragments are published. Only then may its transaction be confirmed to
the server.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Fragment:
    """How many of a fragment's events are unconfirmed, and the commit LSN that it ends with, if any."""

    unconfirmed: int
    commit_lsn: int | None


class DeliveryWindow:
    """The fragments in flight, oldest first.

    :meth:`begin` and :meth:`confirm` may be called by two threads, one each: a fragment is added with its number of
    events before the first of them goes to the publisher.
    """

    def __init__(self) -> None:
        self._fragments: deque[_Fragment] = deque()

    @property
    def pending_fragments(self) -> int:
        """The number of fragments that are not published yet."""
        return len(self._fragments)

    def begin(self, events: int, commit_lsn: int | None) -> _Fragment:
        """Add a fragment before its events, at least one, go to the publisher.

        ``commit_lsn`` is ``None`` if it does not end its transaction.
        """
        fragment = _Fragment(events, commit_lsn)
        self._fragments.append(fragment)
        return fragment

    def confirm(self, fragment: _Fragment) -> int | None:
        """The broker has confirmed one event of ``fragment``; returns the commit LSN that is now published, if any."""
        fragment.unconfirmed -= 1
        published = None
        while self._fragments and self._fragments[0].unconfirmed == 0:
            done = self._fragments.popleft()
            if done.commit_lsn is not None:
                published = done.commit_lsn
        return published
