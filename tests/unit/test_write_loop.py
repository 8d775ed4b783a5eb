"""The four invariants of a write loop, over random parts of transactions, and the defaults of its limits."""

import random
from collections.abc import Iterator

import pytest

from flushtracker.shape_log.log_row import COMMIT, LogRow, item_row
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.transaction_builder import TransactionPart
from flushtracker.shape_log.write_loop import FlushLimits, WriteLoop
from flushtracker.shapes.definition import FlushPolicy
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset

_LIMITS = FlushLimits(flush_bytes=60, interval_ms=100, chunk_bytes=90)


def _parts(rng: random.Random) -> Iterator[TransactionPart]:
    """Transactions of one to eight items, each in one to three parts; some parts have no item."""
    for lsn in range(1000, 3000, 100):
        items = [
            LogItem(LogOffset(lsn, 2 * n), "insert", "k" * rng.randint(1, 30), {}) for n in range(rng.randint(1, 8))
        ]
        cuts = sorted(rng.choices(range(1, len(items) + 1), k=rng.randint(0, 2)))
        for start, end in zip([0, *cuts], [*cuts, len(items)], strict=True):
            is_last = end == len(items)
            columns = RowColumns.of_items(item_row(item, 7, 0) for item in items[start:end])
            yield TransactionPart(lsn, 7, columns, "2026-01-02T03:04:05Z" if is_last else None)
            if is_last:
                break


class _Played:
    """A loop that is given parts, with everything that it has flushed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  a test
        self.loop = WriteLoop(_LIMITS)
        self.taken: list[tuple[int, int]] = []
        self.flushed: list[LogRow] = []

    def steps(self) -> Iterator[None]:
        now_ms = 0
        for part in _parts(self.rng):
            now_ms += self.rng.choice([0, 10, 150])
            self.taken += [LogOffset(*offset) for offset in zip(*part.items.columns[:2], strict=True)]
            if part.commit_timestamp is not None:
                self.taken.append(LogOffset.last_of(part.tx_offset))
            self.flushed += self.loop.handle_part(part, now_ms)
            self.flushed += self.loop.advance(now_ms)
            yield


SEEDS = pytest.mark.parametrize("seed", range(30))


@SEEDS
def test_readers_bound_advances_only_over_whole_transactions_that_are_persisted(seed: int) -> None:
    """Everything up to it is flushed, and it is the end of a transaction."""
    played = _Played(seed)
    for _ in played.steps():
        bound = played.loop.last_persisted_txn_offset
        commits = [row[:2] for row in played.flushed if row.operation == COMMIT]
        assert bound == max(commits, default=LogOffset.before_all())
        assert [row[:2] for row in played.flushed if row[:2] <= bound] == [at for at in played.taken if at <= bound]


@SEEDS
def test_notifications_are_aligned_where_they_can_be(seed: int) -> None:
    """What is said is the last row flushed: a transaction's boundary, unless the flush ends inside of one."""
    played = _Played(seed)
    for _ in played.steps():
        if played.flushed:
            last = played.flushed[-1]
            assert played.loop.last_persisted_offset == last[:2]
            if last.operation != COMMIT:
                assert played.loop.last_persisted_offset > played.loop.last_persisted_txn_offset


@SEEDS
def test_offsets_are_never_renumbered(seed: int) -> None:
    """The rows have the offsets of the items, in their order, and each once."""
    played = _Played(seed)
    for _ in played.steps():
        pass
    assert [row[:2] for row in [*played.flushed, *played.loop.flush()]] == played.taken


@SEEDS
def test_buffer_and_offsets_change_together(seed: int) -> None:
    """What is flushed and what is buffered is what was seen; nothing is buffered if and only if all is persisted."""
    played = _Played(seed)
    for _ in played.steps():
        loop = played.loop
        assert [row[:2] for row in [*played.flushed, *loop.buffer]] == played.taken
        assert loop.last_seen_offset == played.taken[-1]
        assert loop.buffer_bytes == sum(row.payload_bytes for row in loop.buffer)
        assert (not loop.buffer) == (loop.last_persisted_offset == loop.last_seen_offset)


def test_limits_that_a_shape_does_not_set_have_defaults() -> None:
    """64 KiB, a second, 10 MiB."""
    assert FlushLimits.of(FlushPolicy()) == FlushLimits(65_536, 1_000, 10_485_760)
    assert FlushLimits.of(FlushPolicy(1, 2, 3)) == FlushLimits(1, 2, 3)
