"""A group against the plain definition of one, over random histories, stored and read again."""

from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.tracking import txn_store
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.wal.log_offset import LogOffset
from tests.support.group_view import apply_batch, check_group, rows_of
from tests.support.plain_group import Batch, PlainGroup, group_to_json, random_group_batches
from tests.support.random_wal import RANDOMS


@given(RANDOMS, st.sampled_from([1, 4, 30]), st.sampled_from([5, 40]), st.sampled_from([1, 2, 5, 4096]))
@pytest.mark.parametrize("many", [0, 2, txn_store.MANY])
def test_group_equals_its_plain_definition(
    many: int, rng: Random, shapes: int, transactions: int, max_pending: int
) -> None:
    """After each batch: the same report and the same state, with a restart after some; few or many packed apart.

    Before some, an ack has passed some transactions, whether or not the group has seen them and they are flushed.
    """
    with patch.object(txn_store, "MANY", many):
        _compare(rng, random_group_batches(rng, shapes, transactions), max_pending)


def _compare(rng: Random, batches: list[Batch], max_pending: int) -> None:
    group, plain = ShapeGroup(LogOffset.before_all()), PlainGroup(LogOffset.before_all())
    lsns = sorted({fragment.last_log_offset.tx_offset for fragments, _ in batches for fragment in fragments})
    for now_ms, batch in enumerate(batches):
        note(f"batch {batch}")
        if lsns and rng.random() < 0.2:
            ack_lsn = rng.choice(lsns) - rng.randint(0, 1)
            group.complete(LogOffset.last_of(ack_lsn), now_ms=now_ms, max_pending=max_pending)
            plain.complete(ack_lsn, now_ms=now_ms, max_pending=max_pending)
        apply_batch(group, *batch, now_ms=now_ms, max_pending=max_pending)
        plain.apply(batch, now_ms=now_ms, max_pending=max_pending)
        assert group.report() == plain.report()
        packed = group.pack()
        stored = ShapeGroup.unpack(packed)
        check_group(stored)
        assert group_to_json(stored) == plain.to_json()
        assert stored.pack() == packed
        if rng.random() < 0.5:
            group = stored


@given(RANDOMS, st.sampled_from([1, 2, 5, 4096]))
@pytest.mark.parametrize("many", [0, 2, txn_store.MANY])
def test_a_group_in_memory_says_what_the_stored_one_says(many: int, rng: Random, max_pending: int) -> None:
    """Never restarted, over many small batches: also what follows from its state, and is not stored."""
    with patch.object(txn_store, "MANY", many):
        group = ShapeGroup(LogOffset.before_all())
        for now_ms, batch in enumerate(random_group_batches(rng, 6, 80)):
            apply_batch(group, *batch, now_ms=now_ms, max_pending=max_pending)
            assert rows_of(group) == rows_of(ShapeGroup.unpack(group.pack()))
