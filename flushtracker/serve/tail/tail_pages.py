"""``TailPages``: the tails' transactions as pages of messages, which are made once for all clients at a place.

Their bytes are those that the log's pages have later. No cache outside may keep them: a later answer for the same place
has more.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from flushtracker.serve.body import Body, Page, join, stored
from flushtracker.serve.cache import PageCache, PageKey
from flushtracker.serve.follower import Follower
from flushtracker.serve.messages import transaction_messages
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.table_view import TableView
from flushtracker.serve.tail.shape_tail import TailTransaction
from flushtracker.serve.tail.tails import TailPage, Tails

_BLOCK: Final = 32
"""A block of transactions ends at one whose xid is a multiple of this: so it has about as many."""

_PAGE_BYTES: Final = 4 << 20
"""About the most memory of a page's transactions, if there are several: messages are made on the event loop.

A round of ten thousand clients takes seconds, and the next page must have all that has come meanwhile.
"""


class TailPages:
    """For the event loop. ``pages`` keeps what it made.

    ``answers`` counts the pages that were shown, and ``unlinked`` how often only the log could tell what follows.
    """

    def __init__(self, tails: Tails, pages: PageCache, now_s: Callable[[], float] = time.monotonic) -> None:
        self.tails = tails
        self._pages = pages
        self._now_s = now_s
        self.answers = self.unlinked = 0

    def peek(self, follower: Follower) -> Page | None:
        """What the tail has next for a client that waits; ``None`` if that is nothing, or only the log can tell."""
        return self._made(self._find(follower), follower)

    def page(self, follower: Follower) -> Page | None:
        """What a client is shown next: what was found when it was woken, or as of :meth:`peek`."""
        page = follower.tail_page
        if page is None:
            found = self._find(follower)
            self.unlinked += found is None
            page = self._made(found, follower)
        self.answers += page is not None
        return page

    def _made(self, found: TailPage | None, follower: Follower) -> Page | None:
        if found is None or not found.transactions:
            return None
        # Whatever place a client makes up, the page is one of those that begin with a transaction.
        first_tx = found.transactions[0].tx_offset
        key = PageKey(follower.handle.digest, follower.handle.attempt, first_tx, is_tail=True)
        page = self._pages.get(key)
        if page is None or page.tx != found.tx:
            blocks = [self._block(each, follower.seen) for each in _blocks(found.transactions)]
            page = Page(stored(join([each for each in blocks if each])), found.tx, is_end=True)
            self._pages.add(key, [page])
        return page

    def _block(self, transactions: Sequence[TailTransaction], seen: SeenShape) -> bytes:
        """The messages of a part of a page: whole blocks are made once, wherever the pages begin that have them."""
        first_tx, last = transactions[0].tx_offset, transactions[-1]
        block = last.tx_offset, len(transactions)
        key = PageKey(seen.facts.digest, seen.found.attempt, first_tx, is_tail=True, block=block)
        page = self._pages.get(key)
        if page is None:
            page = Page(Body.of(_messages(transactions, seen)), last.tx_offset)
            if _ends_block(last):
                self._pages.add(key, [page])
        return page.body.data

    def _find(self, follower: Follower) -> TailPage | None:
        seen, place = follower.seen, max(follower.tx, follower.sent_lsn)
        self.tails.ask((seen.found.source, seen.shape_id), self._now_s())
        return self.tails.page(seen, follower.handle, place, _PAGE_BYTES)

    def on_view(self, _: TableView) -> None:
        """Forget the shapes that nobody asks for any more."""
        self.tails.expire(self._now_s())


def _ends_block(transaction: TailTransaction) -> bool:
    return transaction.xid % _BLOCK == 0


def _blocks(transactions: Sequence[TailTransaction]) -> Iterator[Sequence[TailTransaction]]:
    """The transactions in parts, which end at the same ones wherever they begin."""
    start = 0
    for end, transaction in enumerate(transactions, 1):
        if _ends_block(transaction) or end == len(transactions):
            yield transactions[start:end]
            start = end


def _messages(transactions: Sequence[TailTransaction], seen: SeenShape) -> bytes:
    messages = list[bytes]()
    for transaction in transactions:
        # None has a truncate: the tail skips such a transaction.
        messages += transaction_messages([*transaction.rows()], seen.facts.rendering) or ()
    return join(messages)
