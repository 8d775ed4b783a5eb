"""Offsets: their order, their special values, and their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.lsn import MAX_LSN

OFFSETS = st.builds(LogOffset, st.integers(0, MAX_LSN), st.one_of(st.integers(0, 1000), st.just(OP_INFINITY)))


@given(OFFSETS, OFFSETS)
def test_order_is_by_transaction_then_operation(one: LogOffset, other: LogOffset) -> None:
    """Offsets compare as pairs."""
    pairs = [(offset.tx_offset, offset.op_offset) for offset in (one, other)]
    assert (one < other, one == other) == (pairs[0] < pairs[1], pairs[0] == pairs[1])


@given(OFFSETS)
def test_parse_reads_what_str_writes(offset: LogOffset) -> None:
    """They are inverses, also for infinity."""
    assert LogOffset.parse(str(offset)) == offset


@given(st.integers(24, MAX_LSN), st.integers(0, 1000), st.integers(0, 24))
def test_special_offsets_surround_their_transaction(lsn: int, op: int, gap: int) -> None:
    """``just_before`` and ``last_of`` enclose the whole transaction, and nothing of its neighbours 24 bytes away."""
    offset = LogOffset(lsn, op)
    assert LogOffset.just_before(lsn) < offset < LogOffset.last_of(lsn)
    # Where a source starts; it is compared with what earlier processes published.
    assert LogOffset.just_before(lsn) == (lsn - 1, 0)
    if lsn + 24 <= MAX_LSN:
        assert LogOffset.last_of(lsn) < LogOffset.just_before(lsn + 24 + gap)


def test_special_offsets_are_in_order() -> None:
    """Before all, the first of a log, the last before replication, and the first real one."""
    offsets = [LogOffset.before_all(), LogOffset.first(), LogOffset.last_before_real_offsets(), LogOffset(1, 0)]
    assert offsets == sorted(set(offsets))
    assert [(offset.tx_offset, offset.op_offset) for offset in offsets[:3]] == [(-1, 0), (0, 0), (0, OP_INFINITY)]


def test_text_names_infinity_and_before_all() -> None:
    """Messages show these two by name: their numbers would mean nothing to a reader."""
    assert str(LogOffset.last_of(97500059720)) == "16/B374D848+inf"
    assert str(LogOffset.before_all()) == "before all"


def test_infinity_fits_a_bigint() -> None:
    """Spark's ``bigint`` fits every part of an offset, except LSNs in the upper half, which no server has reached."""
    assert OP_INFINITY == 2**63 - 1


@pytest.mark.parametrize(("tx_offset", "op_offset"), [(-2, 0), (0, -1), (0, OP_INFINITY + 1)])
def test_parts_out_of_range_are_refused(tx_offset: int, op_offset: int) -> None:
    """A part that is negative or too large is refused on construction, with both parts in the message."""
    message = (
        rf"^LogOffset \({tx_offset}, {op_offset}\) is out of range: tx_offset must be at least -1 and op_offset from 0 "
        rf"to {OP_INFINITY}$"
    )
    with pytest.raises(ValueError, match=message):
        LogOffset(tx_offset, op_offset)


@pytest.mark.parametrize("text", ["", "16/B374D848", "16/B374D848+", "16/B374D848+-1", "16/B374D848+x", "+5", "1/2+²"])
def test_parse_refuses_other_text(text: str) -> None:
    """Only an LSN, a plus and a number are accepted."""
    with pytest.raises(ValueError, match="is not of the form"):
        LogOffset.parse(text)


@given(st.text())
def test_parse_raises_nothing_but_value_error(text: str) -> None:
    """Any text is parsed or refused."""
    try:
        offset = LogOffset.parse(text)
    except ValueError:
        return
    assert LogOffset.parse(str(offset)) == offset


def test_an_offset_cannot_be_changed() -> None:
    """It is a value, and can be a dict key."""
    offset = LogOffset(5, 1)
    with pytest.raises(AttributeError):
        offset.op_offset = 2  # type: ignore[misc]  # mypy rejects it, and so must the runtime
    assert {offset: 1}[LogOffset(5, 1)] == 1
