"""The start of capture where many shapes were removed: what it reads, keeps and publishes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import process_time
from typing import cast

from flushtracker.capture.bound_tables import Tables
from flushtracker.capture.event_limit import EventLimit
from flushtracker.capture.outbox import Outbox
from flushtracker.capture.prior_state import read_prior_state
from flushtracker.capture.subscriptions import Subscriptions
from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.kafka.kafka_config import Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import SourceName
from tests.bench.measure import Table, kept_bytes
from tests.support.fake_publisher import FakePublisher
from tests.support.scripted_source import ScriptedTables

_SOURCE = "7301234567890123456/1/shapes"
_CONFIRMED = 1 << 40


@dataclass(frozen=True, slots=True)
class _Registry:
    """The topics: the registry has ``entries``, and there are no fragments."""

    entries: list[bytes]

    def values(self, _: str) -> Iterator[bytes]:
        return iter(self.entries)

    def tails(self, _: str, __: str) -> Iterator[list[bytes]]:
        return iter(())

    def ends(self, _: str) -> dict[int, int]:
        return {}

    def lasts(self, _: str, __: Callable[[bytes, bytes], bool], ___: Sequence[int]) -> list[bytes]:
        return []


@dataclass(slots=True)
class _Start:
    """One start; ``read_s`` and ``begin_s`` are CPU time."""

    values: list[bytes]
    read_s: float = 0.0
    begin_s: float = 0.0
    published: int = 0

    def run(self) -> object:
        started = process_time()
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        base = SourceName.parse(_SOURCE)
        assert base is not None
        prior = read_prior_state(_Registry(self.values), topics, base)
        self.read_s = process_time() - started
        publisher = FakePublisher()
        outbox = Outbox(publisher, topics, lambda _: None, EventLimit(1 << 20, 1 << 20))
        tables = cast("Tables", ScriptedTables())
        subscriptions = Subscriptions(_SOURCE, prior.entries, outbox, tables, _CONFIRMED)
        self.begin_s = process_time() - started - self.read_s
        self.published = len(publisher.values)
        publisher.values.clear()
        return prior, subscriptions


def tables(*, quick: bool = False) -> Iterator[Table]:
    rows = []
    counts = (100, 1_000) if quick else (1_000, 100_000)
    for count, condensed in product(counts, (False, True)):
        start = _Start(_values(count, condensed=condensed))
        start.run()
        memory_mb = kept_bytes(_Start(start.values).run) / 1e6
        rows.append(
            [
                f"{count:,}",
                "condensed" if condensed else "whole",
                f"{sum(map(len, start.values)) / 1e6:.1f}",
                f"{start.read_s:.2f}",
                f"{start.begin_s:.2f}",
                f"{start.published:,}",
                f"{memory_mb:,.0f}",
            ]
        )
    yield Table(
        "A start of capture after shapes were removed, all before what is confirmed; CPU time",
        ["removed shapes", "entries", "MB", "read the registry, s", "begin, s", "records published", "memory, MB"],
        rows,
    )


def _values(count: int, *, condensed: bool) -> list[bytes]:
    definition = ShapeDefinition(
        "", ("public", "orders"), ("id", "tenant_id", "status"), "tenant_id = 7", primary_key=("id",), snapshot=True
    )
    source = SourceEntry(_SOURCE, LogOffset(999, 0), "16388/742")
    entry = ShapeEntry(_SOURCE, definition, 16_385, LogOffset(1_000, 0), starts_visible=True)
    entries = (
        replace(entry, definition=replace(definition, id=f"shape-{n}"), removed_at=LogOffset(2_000 + n, 0))
        for n in range(count)
    )
    kept = (entry.condensed() if condensed else entry for entry in entries)
    return [source.to_json().encode(), *(entry.to_json().encode() for entry in kept)]
