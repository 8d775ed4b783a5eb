"""Changes per second that one core converts from PostgreSQL's bytes to the streams' JSON, and the time of each step.

Tables without shapes are not measured: capture does not decode their rows.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from time import process_time

from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.topic_rules import MAX_EVENT_BYTES
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.pgoutput import decode
from tests.bench import wal
from tests.bench.measure import Table, medians, per_second

CHANGES_PER_TRANSACTION = 20
STEPS = ("decode", "convert", "route", "publish", "JSON")

ALL = [ShapeDefinition("orders", ("public", "orders"), primary_key=("id",))]
EACH_TENANT = [
    ShapeDefinition(f"orders-{n}", ("public", "orders"), where=f"tenant_id = {n}", primary_key=("id",))
    for n in range(wal.TENANTS)
]
OTHER_TENANTS = [
    ShapeDefinition(f"orders-{n}", ("public", "orders"), where=f"tenant_id = {n}", primary_key=("id",))
    for n in range(wal.TENANTS, 2 * wal.TENANTS)
]
WORKLOADS: list[tuple[str, list[ShapeDefinition], str]] = [
    ("insert that matches none of 1,000 shapes", OTHER_TENANTS, "insert"),
    ("update that matches none of 1,000 shapes", OTHER_TENANTS, "update"),
    ("insert that matches the only shape", ALL, "insert"),
    ("insert that matches one of 1,000 shapes", EACH_TENANT, "insert"),
    ("update that matches the only shape", ALL, "update"),
    ("update that matches one of 1,000 shapes", EACH_TENANT, "update"),
]


def tables(*, quick: bool = False) -> Iterator[Table]:
    transactions, rounds = (5, 1) if quick else (100, 31)
    rows = []
    for label, definitions, operation in WORKLOADS:
        messages = wal.transactions(transactions, CHANGES_PER_TRANSACTION, operation)
        router = EventRouter(definitions)
        step_times(messages, router)
        times = medians(step_times(messages, router) for _ in range(rounds))
        steps_us = [time / (transactions * CHANGES_PER_TRANSACTION) * 1e6 for time in times]
        rows.append([label, per_second(sum(steps_us)), *(f"{us:.1f}" for us in [sum(steps_us), *steps_us])])
    yield Table(
        f"From bytes to JSON: rows of 6 columns, {CHANGES_PER_TRANSACTION} changes per transaction; µs per change",
        ["", "changes/s", "µs", *STEPS],
        rows,
    )


def step_times(messages: Iterable[bytes], router: EventRouter) -> list[float]:
    """The CPU time of each of ``STEPS``, in seconds."""
    converter = FragmentConverter()
    sequencer = FragmentSequencer("7301/1/shapes", wal.FIRST_LSN, max_event_bytes=MAX_EVENT_BYTES)
    converter.handle(decode(wal.relation_message()))
    clock = [process_time()]
    decoded = [decode(message) for message in messages]
    clock.append(process_time())
    fragments = [fragment for message in decoded for fragment in converter.handle(message)]
    clock.append(process_time())
    routed = [router.route(fragment) for fragment in fragments]
    clock.append(process_time())
    published = [sequencer.sequence(*each) for each in zip(fragments, routed, strict=True)]
    clock.append(process_time())
    for each in published:
        for fragment in each.fragments:
            fragment.to_json()
        for event in each.shape_changes:
            event.to_json()
    clock.append(process_time())
    return [after - before for before, after in pairwise(clock)]
