"""Pending transactions as columns: equal to a list of them, in any sizes of numbers, and stored as they are."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.tracking import txn_offset_mapping
from flushtracker.tracking.txn_offset_mapping import PendingTxn, TxnOffsetMapping
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from tests.support.random_wal import RANDOMS

STEPS = [24, 300, 40_000, 2**31, 2**33]
OPS = [0, 2, 127, 128, 255, 256, 2**16, 2**32, 2**50, OP_INFINITY]


def repacked(txns: TxnOffsetMapping) -> TxnOffsetMapping:
    packed = b"head" + txns.pack()
    read = TxnOffsetMapping.unpack(packed, 4)
    assert read.pack() == packed[4:]
    return read


@given(RANDOMS, st.sampled_from([STEPS, STEPS[:1], STEPS[:3]]), st.sampled_from([OPS, OPS[:2]]))
def test_mapping_equals_a_list(rng: Random, steps: list[int], ops: list[int]) -> None:
    """After each of a random series of changes, and after being stored and read."""
    txns, plain = TxnOffsetMapping(), list[PendingTxn]()
    lsn = rng.choice([1, 2**62])
    for _ in range(60):
        change = rng.choice(["append", "append", "append", "extend", "drop", "merge"])
        if change == "append":
            lsn += rng.choice(steps)
            last_offset, boundary = LogOffset(lsn, rng.choice(ops)), LogOffset(lsn, rng.choice(ops))
            txns.append(last_offset, boundary)
            plain.append(PendingTxn(lsn, last_offset, boundary))
        elif change == "extend" and plain:
            last_offset, boundary = LogOffset(lsn, rng.choice(ops)), LogOffset(lsn, rng.choice(ops))
            txns.extend_last(last_offset, boundary)
            last = plain.pop()
            last_offset, boundary = max(last.last_offset, last_offset), max(last.boundary, boundary)
            plain.append(PendingTxn(last.first_tx_offset, last_offset, boundary))
        elif change == "drop" and plain:
            near = rng.choice(plain[:3]).last_offset
            flushed = LogOffset(near.tx_offset - rng.choice([0, 0, 1]), rng.choice([near.op_offset, *ops]))
            txns.drop_through(flushed)
            plain = [txn for txn in plain if txn.last_offset > flushed]
        elif change == "merge" and rng.random() < 0.3:
            most = rng.randint(1, 9)
            txns.merge_neighbours(most)
            while len(plain) > most:
                pairs = [plain[at : at + 2] for at in range(0, len(plain), 2)]
                plain = [PendingTxn(p[0].first_tx_offset, p[-1].last_offset, p[-1].boundary) for p in pairs]
        assert list(txns) == plain
        assert len(txns) == len(plain)
        if plain:
            assert txns.first_tx_offset == plain[0].first_tx_offset
            assert txns.last_tx_offset == plain[-1].boundary.tx_offset
            assert txns.last_sent == max(plain[-1].last_offset, plain[-1].boundary)
        assert TxnOffsetMapping(plain) == repacked(txns) == txns
        if rng.random() < 0.3:
            txns = repacked(txns)


def test_drop_through_keeps_the_transaction_that_is_flushed_in_part() -> None:
    """And drops the one whose last offset is the flush."""
    txns = TxnOffsetMapping([PendingTxn(lsn, LogOffset(lsn, 4), LogOffset(lsn, 6)) for lsn in (100, 200, 300)])
    txns.drop_through(LogOffset(200, 3))
    assert txns.first_tx_offset == 200
    txns.drop_through(LogOffset(200, 4))
    assert txns.first_tx_offset == 300
    txns.drop_through(LogOffset(50, 9))
    assert len(txns) == 1


def test_four_thousand_transactions_take_seven_bytes_each() -> None:
    """The state of a stalled shape is written with each batch that reaches its group."""
    txns = TxnOffsetMapping()
    for number in range(4096):
        lsn = 2**40 + 200 * number
        txns.append(LogOffset(lsn, 2), LogOffset(lsn, 4))
    assert len(txns.pack()) == 16 + 7 * 4096


@pytest.mark.parametrize("kept", [1, 2000, 4700])  # of 1.8 GB and 4.2 GB of WAL
def test_appending_and_dropping_copies_no_column_each_time(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that always has something pending: counts the elements copied to widen a column or move its base.

    4.2 GB barely fit in 32 bits, and would soon be copied again without room.
    """
    copied = 0

    def narrow(values: list[int], codes: str = "BHIQ", wrapped=txn_offset_mapping._narrow) -> object:  # type: ignore[no-untyped-def]
        nonlocal copied
        copied += len(values)
        return wrapped(values, codes)

    txns = TxnOffsetMapping()
    monkeypatch.setattr(txn_offset_mapping, "_narrow", narrow)
    appended, step = 50_000, 900_000  # 45 GB of WAL, so that 32 bits overflow again and again
    for number in range(appended):
        lsn = 100 + step * number
        txns.append(LogOffset(lsn, number), LogOffset(lsn, number))
        if number >= kept:
            txns.drop_through(LogOffset(lsn - kept * step, number))
    assert len(txns) == kept
    assert 0 < copied < 2 * appended


def test_bytes_are_little_endian_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of the other byte order swaps them; here that swaps what is stored."""
    txns = TxnOffsetMapping([PendingTxn(100, LogOffset(100, 2), LogOffset(100, 700))])
    little = txns.pack()
    assert little.endswith(b"\xbc\x02")
    monkeypatch.setattr(txn_offset_mapping, "_IS_BIG_ENDIAN", not txn_offset_mapping._IS_BIG_ENDIAN)
    assert txns.pack().endswith(b"\x02\xbc")
    assert TxnOffsetMapping.unpack(txns.pack(), 0) == txns
