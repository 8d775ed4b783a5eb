"""Pages of a tail: what is on one, and that it is made once for all clients."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from flushtracker.errors import SnapshotMissingError
from flushtracker.serve.cache import PageCache, PageKey
from flushtracker.serve.follower import Follower
from flushtracker.serve.poller import FORGET_S
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.table_view import ShapeProblem, TableView
from flushtracker.serve.tail.tail_pages import TailPages
from flushtracker.serve.tail.tails import Tails
from tests.support.one_tail import FIRST, KEY, MOST_BYTES, SECOND, THIRD, Tail, seen


def _pages(tail: Tail, now_s: Callable[[], float] = lambda: 0.0) -> tuple[TailPages, PageCache]:
    cache = PageCache(1 << 20, 1 << 20)
    return TailPages(tail.tails, cache, now_s), cache


def _at(place: int, by: SeenShape) -> Follower:
    return Follower(by, by.handle, min(place, by.tx), place)


def test_page_is_made_once_for_all_clients_before_its_first_transaction() -> None:
    """And again once the tail has more; what the log's pages begin with is kept apart."""
    tail = Tail(FIRST, SECOND)
    pages, cache = _pages(tail)
    page = pages.page(_at(104, seen(104)))
    assert page is not None
    assert (page.tx, page.is_end, json.loads(b"[" + page.body.data + b"]")[0]["headers"]["lsn"]) == (200, True, "200")
    assert pages.page(_at(150, seen(104, cut=160))) is page
    digest, attempt = seen(104).handle.digest, seen(104).handle.attempt
    assert [cache.get(PageKey(digest, attempt, 200, is_tail=kind)) for kind in (True, False)] == [page, None]
    tail.add(THIRD)
    longer = pages.page(_at(104, seen(104)))
    assert longer is not None
    assert (longer.tx, longer.body.data.startswith(page.body.data)) == (304, True)
    assert pages.page(_at(304, seen(104))) is None
    assert (pages.answers, pages.unlinked) == (3, 0)
    assert [pages.page(_at(88, seen(88))) for _ in range(2)] == [None, None]
    assert (pages.answers, pages.unlinked) == (3, 2)


@pytest.mark.parametrize(("block", "kept"), [(1, 3), (200, 2), (1_000_003, 0)])
def test_pages_have_the_same_bytes_wherever_they_begin(block: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made of blocks, which are kept besides."""
    monkeypatch.setattr("flushtracker.serve.tail.tail_pages._BLOCK", block)
    pages, cache = _pages(Tail(FIRST, SECOND, THIRD))
    found = [pages.page(_at(place, seen(place))) for place in (96, 104, 200)]
    bodies = [page.body.data for page in found if page is not None]
    told = [[message["headers"]["lsn"] for message in json.loads(b"[" + body + b"]")] for body in bodies]
    assert told == [["104", "104", "200", "304"], ["200", "304"], ["304"]]
    assert all(bodies[0].endswith(body) for body in bodies)
    assert len(cache) == len(bodies) + kept


def test_client_that_waits_is_shown_the_page_that_woke_it() -> None:
    """The look that found it counts as no answer, and is the only one."""
    pages, _ = _pages(Tail(FIRST, SECOND))
    found = [pages.peek(_at(place, seen(place))) for place in (88, 104, 200)]
    assert [page is not None for page in found] == [False, True, False]
    assert (pages.answers, pages.unlinked) == (0, 0)
    pages.tails.forget_all()
    assert pages.page(replace(_at(104, seen(104)), tail_page=found[1])) is found[1]
    assert (pages.answers, pages.unlinked) == (1, 0)


def test_shape_is_watched_as_long_as_clients_ask_for_its_page() -> None:
    """By the clock of the server, in seconds; what the log has by a view is kept for clients that are late."""
    now_s = 1_000.0
    tails = Tails(64 << 20)
    pages = TailPages(tails, PageCache(1 << 20, 1 << 20), lambda: now_s)
    assert pages.page(_at(96, seen(96))) is None
    assert tails.asked == {KEY}
    for each in (FIRST, SECOND):
        tails.add(KEY, each)
    now_s += FORGET_S
    pages.on_view(TableView(shapes={"users": seen(104)}))
    assert tails.asked == {KEY}
    assert pages.peek(_at(96, seen(96))) is not None
    assert pages.peek(_at(104, seen(104))) is not None
    now_s += FORGET_S + 0.001
    pages.on_view(TableView(shapes={"users": ShapeProblem(SnapshotMissingError, "")}))
    assert (tails.asked, tails.memory_bytes) == (frozenset(), 0)


def test_page_ends_where_the_next_transaction_would_be_too_much() -> None:
    """All of its transactions count, and it says how far it goes."""
    tails = Tail(FIRST, SECOND, THIRD).tails
    whole = tails.page(seen(96), seen(96).handle, 96, MOST_BYTES)
    assert whole is not None
    sizes = [each.memory_bytes for each in whole.transactions]
    for most, shown in ((sum(sizes), 3), (sum(sizes) - 1, 2), (sum(sizes[:2]), 2), (sum(sizes[:2]) - 1, 1)):
        page = tails.page(seen(96), seen(96).handle, 96, most)
        assert page is not None
        expected = [104, 200, 304][:shown]
        assert ([each.tx_offset for each in page.transactions], page.tx) == (expected, expected[-1])
    page = tails.page(seen(304), seen(304).handle, 304, MOST_BYTES)
    assert page is not None
    assert (page.transactions, page.tx) == ((), 304)
