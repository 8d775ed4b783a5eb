"""``DeliveryWindow``: the fragments that the broker has not confirmed yet, and the LSN up to which it has.

The broker confirms events of different topics in any order. A fragment counts as published once the broker has
confirmed all of its events *and* all earlier fragments are published. Only then may its transaction be confirmed to
the server.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial


@dataclass(slots=True)
class _Fragment:
    """How many of a fragment's events are unconfirmed, and the commit LSN that it ends with, if any."""

    unconfirmed: int
    commit_lsn: int | None


class DeliveryWindow:
    """The fragments in flight, oldest first; ``on_published`` gets each commit LSN that is published now.

    :meth:`begin` and what it returns may be called by two threads, one each: a fragment is added with its number of
    events before the first of them goes to the publisher.
    """

    def __init__(self, on_published: Callable[[int], None]) -> None:
        self._on_published = on_published
        self._fragments: deque[_Fragment] = deque()

    @property
    def pending_fragments(self) -> int:
        """The number of fragments that are not published yet."""
        return len(self._fragments)

    def begin(self, events: int, commit_lsn: int | None) -> Callable[[], None]:
        """Add a fragment before its events, at least one, go to the publisher.

        ``commit_lsn`` is ``None`` if it does not end its transaction. Call the result once for each of its events, when
        the broker has confirmed it.
        """
        fragment = _Fragment(events, commit_lsn)
        self._fragments.append(fragment)
        return partial(self._confirm, fragment)

    def _confirm(self, fragment: _Fragment) -> None:
        fragment.unconfirmed -= 1
        if fragment.unconfirmed:
            return
        published = None
        while self._fragments and self._fragments[0].unconfirmed == 0:
            done = self._fragments.popleft()
            if done.commit_lsn is not None:
                published = done.commit_lsn
        if published is not None:
            self._on_published(published)
