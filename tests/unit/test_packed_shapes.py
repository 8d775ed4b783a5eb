"""A group unpacks and packs only the shapes that a batch reaches, and equals one that is never packed."""

from random import Random

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from flushtracker.errors import StateError
from flushtracker.tracking import packed_shapes
from flushtracker.tracking.shape_group import ShapeFlush, ShapeFragment, ShapeGroup
from flushtracker.tracking.shape_offsets import ShapeOffsets
from flushtracker.wal.log_offset import LogOffset
from tests.support.plain_group import Batch, PlainGroup, group_to_json, random_group_batches
from tests.support.random_wal import RANDOMS


@given(RANDOMS, st.sampled_from([1, 4, 30]), st.sampled_from([5, 40]), st.sampled_from([1, 2, 5, 4096]))
def test_group_equals_one_that_is_never_packed(rng: Random, shapes: int, transactions: int, max_pending: int) -> None:
    """After each batch: the same report and the same state, with a restart after some, some from an old release."""
    group, plain = ShapeGroup(LogOffset.before_all()), PlainGroup(LogOffset.before_all())
    for now_ms, batch in enumerate(random_group_batches(rng, shapes, transactions)):
        note(f"batch {batch}")
        group.apply(*batch, now_ms=now_ms, max_pending=max_pending)
        plain.apply(batch, now_ms=now_ms, max_pending=max_pending)
        assert group.report() == plain.report()
        packed = group.pack()
        stored = ShapeGroup.unpack(packed)
        stored.check_invariants()
        assert group_to_json(stored) == plain.to_json()
        assert stored.pack() == packed
        restart = rng.choice(["none", "none", "version 1", "version 2"])
        if restart == "version 1":
            group = ShapeGroup.unpack(plain.pack_version_1())
        elif restart == "version 2":
            group = ShapeGroup.unpack(packed)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all shapes' packing and unpacking, in order."""
    made: list[str] = []

    def pack_shape(shape: ShapeOffsets, wrapped=packed_shapes.pack_shape) -> bytes:  # type: ignore[no-untyped-def]
        made.append("pack")
        return wrapped(shape)  # type: ignore[no-any-return]

    def unpack_shape(record: bytes, wrapped=packed_shapes.unpack_shape) -> ShapeOffsets:  # type: ignore[no-untyped-def]
        made.append("unpack")
        return wrapped(record)  # type: ignore[no-any-return]

    monkeypatch.setattr(packed_shapes, "pack_shape", pack_shape)
    monkeypatch.setattr(packed_shapes, "unpack_shape", unpack_shape)
    return made


def stalled_group(shapes: int) -> bytes:
    """Every shape has three transactions pending."""
    group = ShapeGroup(LogOffset.before_all())
    for lsn in (100, 200, 300):
        rows = [ShapeFragment(f"s{n}", LogOffset(lsn, 2), LogOffset(lsn, 4), is_commit=True) for n in range(shapes)]
        group.apply(rows, [], now_ms=lsn, max_pending=4096)
    return group.pack()


def test_a_batch_unpacks_and_packs_only_the_shapes_that_it_reaches(calls: list[str]) -> None:
    """One flush or fragment costs one shape, however many are stalled beside it, and so do report and state."""
    packed = stalled_group(1000)
    fragment = ShapeFragment("s7", LogOffset(400, 2), LogOffset(400, 4), is_commit=True)
    batches: list[Batch] = [([], [ShapeFlush("s7", LogOffset(200, 2))]), ([fragment], [])]
    for events in batches:
        calls.clear()
        group = ShapeGroup.unpack(packed)
        group.apply(*events, now_ms=400, max_pending=4096)
        assert group.report().pending_shapes == 1000
        packed = group.pack()
        assert calls == ["unpack", "pack"]


def test_a_shape_with_only_an_open_transaction_is_not_unpacked(calls: list[str]) -> None:
    """Unlike one that is kept for a flush alone, which the cursor may have passed: that is looked at in each batch."""
    group = ShapeGroup(LogOffset.before_all())
    rows = [ShapeFragment("open", LogOffset(100, 2), LogOffset(100, 4), is_commit=False)]
    group.apply(rows, [ShapeFlush("early", LogOffset(300, 2))], now_ms=0, max_pending=4096)
    packed = group.pack()
    calls.clear()
    group = ShapeGroup.unpack(packed)
    group.apply([], [], now_ms=0, max_pending=4096)
    assert group.pack() == packed
    assert calls == ["unpack", "pack"]


def test_a_resend_unpacks_nothing(calls: list[str]) -> None:
    """All of its rows are at or below the group's cursor."""
    packed = stalled_group(1000)
    calls.clear()
    group = ShapeGroup.unpack(packed)
    rows = [ShapeFragment(f"s{n}", LogOffset(300, 2), LogOffset(300, 4), is_commit=True) for n in range(1000)]
    group.apply(rows, [], now_ms=400, max_pending=4096)
    assert group.pack() == packed
    assert calls == []


def test_a_cut_off_state_is_refused() -> None:
    """Wherever it is cut, also between two shapes: without a shape, an ack could pass what it has yet to flush."""
    packed = stalled_group(2)
    for size in range(17, len(packed)):
        with pytest.raises(StateError, match=r"state is cut off; restore it, or start with a new one and a resend"):
            ShapeGroup.unpack(packed[:size])
    with pytest.raises(StateError, match="cut off"):
        ShapeGroup.unpack(packed + b"x")


def test_shapes_are_a_mapping() -> None:
    """Of ids to offsets, packed or not."""
    shapes = ShapeGroup.unpack(stalled_group(3)).shapes
    assert (list(shapes), len(shapes), "s1" in shapes, "s3" in shapes) == (["s0", "s1", "s2"], 3, True, False)
    del shapes["s1"]
    assert list(shapes) == ["s0", "s2"]
    assert shapes["s0"].txn_offset_mapping.first_tx_offset == 100
    with pytest.raises(KeyError, match="s1"):
        shapes["s1"]
