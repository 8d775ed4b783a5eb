"""What the server keeps of shapes and definitions that clients have asked for and ask for no more: nothing."""

import asyncio
from typing import Final

import pytest

from flushtracker.config.serve_config import TailConfig
from flushtracker.events.registry import Registry
from flushtracker.serve.definition_cache import DefinitionCache
from flushtracker.serve.on_demand.kept_selections import KeptSelections
from flushtracker.serve.on_demand.on_demand import OnDemand
from flushtracker.serve.open_tables import OpenTables
from flushtracker.serve.poller import FORGET_S, Poller
from flushtracker.serve.shape_request import RequestedDefinition
from flushtracker.serve.single_flight import SingleFlight
from flushtracker.serve.table_view import TableView
from flushtracker.serve.tail import tail_reader
from flushtracker.serve.tail.tail_reader import TailReader, _Batch
from flushtracker.serve.tail.tails import Tails
from tests.support.large_containers import containers
from tests.support.on_demand_log import ORDERS, WHOLE, order_entries
from tests.support.shape_log_rows import SOURCE
from tests.support.tail_reading import whole_transaction
from tests.unit.serve.test_tail_reader import PlayedRecord, PlayedTopic

_ALL: Final = 20_000
_AT_ONCE: Final = 1_000
MANY: Final = 3 * _AT_ONCE


def test_nothing_is_kept_of_tails_that_have_come_and_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the shapes, nor of their keys in the reader."""
    monkeypatch.setattr(tail_reader, "TopicTail", lambda *_: PlayedTopic())
    tails = Tails(64 << 20)
    reader = TailReader(TailConfig("kafka:9092", "shape_changes"), tails, lambda *_: None)
    for first in range(0, _ALL, _AT_ONCE):
        now_s = first * FORGET_S
        names = [f"s{number}" for number in range(first, first + _AT_ONCE)]
        for name in names:
            tails.ask((SOURCE, name), now_s)
        batch = _Batch()
        reader._add([PlayedRecord(whole_transaction(7, 6, name)) for name in names], batch)  # type: ignore[misc]
        assert [key for key, event in batch.events if event is not None and tails.add(key, event)] != []
        tails.expire(now_s + FORGET_S + 1)
        tails.check_invariants()
    assert tails.memory_bytes == 0
    assert dict(containers([tails, reader], MANY)) == {}


async def test_nothing_is_kept_of_definitions_that_have_come_and_gone() -> None:
    """In the cache, and in the thread that finds them."""
    flights = SingleFlight("definitions", 1, _AT_ONCE)
    cache = DefinitionCache(None, flights, OnDemand.of(frozenset([ORDERS]), _ALL))
    registry = Registry.of(order_entries(WHOLE))
    for first in range(0, _ALL // 10, _AT_ONCE // 10):
        asked = [RequestedDefinition("orders", f"id = {first + n}", None, "default") for n in range(_AT_ONCE // 10)]
        targets = await asyncio.gather(*(cache.target(registry, each, first * FORGET_S) for each in asked))
        assert all(target is not None and target.selection is not None for target in targets)
    assert dict(containers(cache, MANY // 10)) == {}


def test_nothing_is_kept_of_selections_that_have_come_and_gone() -> None:
    kept = KeptSelections[int](_ALL)
    for number in range(_ALL):
        kept.add(number, number, 10, number * FORGET_S / _AT_ONCE)
        assert kept.get(number, number * FORGET_S / _AT_ONCE) == number
    assert kept.get(0, _ALL * FORGET_S) is None
    assert (len(kept), kept.characters) == (0, 0)


async def test_nothing_is_kept_of_shapes_that_were_polled() -> None:
    """Clients that waited for changes, and shapes that nobody has asked for in a while."""

    def open_tables() -> OpenTables:
        raise AssertionError

    now_s = 0.0
    poller = Poller(open_tables, 0.5, now_s=lambda: now_s)
    for number in range(_ALL):
        now_s = float(number)
        name, or_cut = f"s{number}", number % 2 == 0
        poller.drop(name, poller.changed(name, or_cut=or_cut), or_cut=or_cut)
        if number % 100 == 0:
            poller._publish(TableView(began_s=now_s))
    now_s += 1_000
    poller._publish(TableView(began_s=now_s))
    assert (poller.polled_shapes, poller.waiting) == (0, 0)
    assert dict(containers(poller, 300)) == {}
