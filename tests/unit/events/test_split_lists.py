"""Commits whose list of shapes is split: what capture publishes under any limit, and the job's acks from it.

The sequencer publishes random histories several times, each time with other cuts and another limit of an event's size,
and stops anywhere. After every batch the ack is what may be acknowledged by definition, and the state holds nothing
that it need not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import LogItem, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import is_list
from tests.support.ack_rows import AckRows
from tests.support.exact_ack import Delivered
from tests.support.random_wal import RANDOMS, items_after, random_batches, random_flushes, random_history
from tests.support.simulated_job import SimulatedJob
from tests.support.wal_history import History, Keepalive, Txn, commit_at

SHAPES = [f"shape-{number}" for number in range(9)]
_HEAD_BYTES = 4_096
_SHAPE_BYTES = 170
"""The size of one of these shapes, as the sequencer counts."""


def routed(txn: Txn, edges: Sequence[int]) -> Iterator[tuple[TransactionFragment, list[RoutedFragment]]]:
    """The transaction's fragments, cut before these operations, and what the router returns for each."""
    for first, end in pairwise(edges):
        commit = commit_at(txn.lsn) if end == edges[-1] else None
        last = LogOffset(txn.lsn, 2 * (end - 1))
        ops = [(op, shape_id) for index in range(first, end) for shape_id, op in txn.operations[index].items()]
        parts = []
        for shape_id in sorted(txn.last_written if commit else {shape_id for _, shape_id in ops}):
            items = tuple(LogItem(LogOffset(txn.lsn, op), "truncate") for op, each in ops if each == shape_id)
            part = RoutedFragment(shape_id, txn.xid, txn.lsn, last, True, commit, items, len(items))  # noqa: FBT003  field
            parts.append(replace(part, writer=txn.writer_of(shape_id)))
        yield TransactionFragment(txn.xid, txn.lsn, last, has_begin=first == 0, commit=commit), parts


def published(rng: Random, history: History, confirmed: int) -> Iterator[FragmentEvent]:
    """What a capture process publishes from the confirmed LSN on."""
    limit = _HEAD_BYTES + _SHAPE_BYTES * rng.choice([1, 1, 2, 3, 5, 20])
    sequencer = FragmentSequencer(history.source, confirmed + 1, max_event_bytes=limit)
    for item in history.items[items_after(history, confirmed) :]:
        if isinstance(item, Keepalive):
            last = LogOffset(item.lsn, 0)
            keepalive = TransactionFragment(None, item.lsn, last, has_begin=True, commit=commit_at(item.lsn))
            yield from sequencer.sequence(keepalive, []).fragments
            continue
        cuts = [index for index in range(1, len(item.operations)) if rng.random() < 0.5]
        for fragment, parts in routed(item, [0, *cuts, len(item.operations)]):
            for event in sequencer.sequence(fragment, parts).fragments:
                assert len(event.to_json()) <= limit
                yield FragmentEvent.from_json(event.to_json())


@given(RANDOMS, st.integers(1, 6), st.sampled_from([0, 1, 3, 16]))
def test_every_ack_is_exact_under_any_limit(rng: Random, size: int, shape_groups: int) -> None:
    """Processes with other limits resend what others have published in part; the slot is confirmed in between."""
    history = random_history(rng, "7301/1/shapes", size, shapes=SHAPES)
    job, oracle = SimulatedJob(AckRows(), shape_groups=shape_groups), Delivered(history)
    confirmed = history.items[0].lsn - 20
    for run in range(rng.randint(1, 5)):
        stream = list(published(rng, history, confirmed))
        if run < 4:
            stream = stream[: rng.randint(1, len(stream))] if stream else []
        for batch in random_batches(rng, [stream], random_flushes(rng, history)):
            note(f"batch {batch}")
            job.run_batch(batch)
            oracle.add(batch)
            oracle.assert_exact(job.ack_lsn(history.source))
        if rng.random() < 0.5:
            confirmed = max(confirmed, job.ack_lsn(history.source))
        if rng.random() < 0.5:
            job = SimulatedJob(job.table, job.checkpoint, shape_groups=shape_groups)
    batch = [*published(rng, history, confirmed), *history.last_flushes()]
    job.run_batch(rng.sample(batch, len(batch)))
    oracle.add(batch)
    oracle.assert_exact(job.ack_lsn(history.source))
    assert job.is_caught_up(history.source)


def test_the_limits_split_and_hold_back_what_they_should() -> None:
    """Else the test above tests nothing: lists are split, and fragments before a commit are left out."""
    rng = Random(7)  # noqa: S311
    history = random_history(rng, "7301/1/shapes", 6, shapes=SHAPES)
    runs = [list(published(rng, history, history.items[0].lsn - 20)) for _ in range(30)]
    events = [event for run in runs for event in run]
    assert sum(is_list(event.last_log_offset.op_offset) for event in events) > 30
    assert any(event.commit is None and not is_list(event.last_log_offset.op_offset) for event in events)
    fewest, most = (choose(sum(event.commit is None for event in run) for run in runs) for choose in (min, max))
    assert fewest < most
