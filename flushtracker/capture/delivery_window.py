"""``DeliveryWindow``: which fragments the broker has not confirmed yet, and up to where all are.

Events of different topics are confirmed in any order. A fragment counts as published once the broker has confirmed all
of its events *and* all fragments before it are published. Only then may its transaction ever be confirmed to the
server.
"""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Fragment:
    """A fragment's events that are still on their way, and the commit LSN that is reached with it, if any."""

    events: int
    commit_lsn: int | None


class DeliveryWindow:
    """The fragments on their way, oldest first.

    :meth:`begin` and :meth:`confirm` may be called by two threads, each by one: a fragment is known with all its events
    before the first is handed to the publisher.
    """

    def __init__(self) -> None:
        self._fragments: deque[_Fragment] = deque()

    @property
    def pending_fragments(self) -> int:
        """How many fragments are not published yet."""
        return len(self._fragments)

    def begin(self, events: int, commit_lsn: int | None) -> _Fragment:
        """A fragment of so many events, at least one, is about to be handed over.

        ``commit_lsn`` is ``None`` where it does not end its transaction.
        """
        fragment = _Fragment(events, commit_lsn)
        self._fragments.append(fragment)
        return fragment

    def confirm(self, fragment: _Fragment) -> int | None:
        """The broker has one more event of ``fragment``; returns the commit LSN that is published with it, if any."""
        fragment.events -= 1
        published = None
        while self._fragments and self._fragments[0].events == 0:
            done = self._fragments.popleft()
            if done.commit_lsn is not None:
                published = done.commit_lsn
        return published
