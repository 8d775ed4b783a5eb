"""The decoder and the converter on a recorded WAL, compared with PostgreSQL's own reading of it."""

from collections import Counter
from collections.abc import Iterator

import pytest

from flushtracker.trials.recordings.recording import read_recording
from flushtracker.wal.changes import Change, Delete, Insert, Row, TransactionFragment, Truncate, Update, change_bytes
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import decode
from tests.support.recorded_workload import PUBLISHED, RECORDING
from tests.support.truth import TruthChange, TruthTransaction, read_truth


@pytest.fixture(scope="module")
def truth() -> list[TruthTransaction]:
    return read_truth(RECORDING / "truth.txt.gz")


@pytest.fixture(scope="module")
def transactions() -> list[list[TransactionFragment]]:
    """The fragments of the whole recording, one list for each transaction."""
    return list(by_transaction(FragmentConverter(max_batch_size=100)))


def by_transaction(converter: FragmentConverter) -> Iterator[list[TransactionFragment]]:
    fragments: list[TransactionFragment] = []
    for frame in read_recording(RECORDING):
        for fragment in converter.handle(decode(frame.data)):
            fragments.append(fragment)
            if fragment.commit is not None:
                yield fragments
                fragments = []
        converter.check_invariants()
    assert not fragments
    assert not converter.in_transaction


def as_truth(change: Change, lsn: int) -> TruthChange:
    """``change`` as ``test_decoding`` prints it: without NULLs in old rows, and with its own LSN."""
    table = change.relation.table
    match change:
        case Insert(_, _, new):
            return TruthChange(lsn, "insert", table, new=dict(new))
        case Update(_, _, None, new):
            return TruthChange(lsn, "update", table, new=dict(new))
        case Update(_, _, old, new):
            return TruthChange(lsn, "update", table, old=without_nulls(old or {}), new=dict(new))
        case Delete(_, _, old):
            return TruthChange(lsn, "delete", table, old=without_nulls(old))
        case Truncate():
            return TruthChange(lsn, "truncate", table)


def without_nulls(row: Row) -> dict[str, str | None]:
    return {name: value for name, value in row.items() if value is not None}


def published(transaction: TruthTransaction) -> list[TruthChange]:
    return [change for change in transaction.changes if change.table in PUBLISHED]


def test_every_recorded_change_is_what_postgresql_itself_decodes(
    truth: list[TruthTransaction], transactions: list[list[TransactionFragment]]
) -> None:
    """Transaction by transaction and change by change: xid, commit, order, operation, table, values, old rows."""
    expected = [transaction for transaction in truth if published(transaction)]
    assert len(transactions) == len(expected) == 369
    seen: Counter[str] = Counter()
    for fragments, transaction in zip(transactions, expected, strict=True):
        changes = [change for fragment in fragments for change in fragment.changes]
        commit = fragments[-1].commit
        assert commit is not None
        assert {fragment.xid for fragment in fragments} == {transaction.xid}
        # test_decoding's COMMIT line has the LSN of the commit record's end; its changes have those of their starts.
        assert commit.end_lsn == transaction.end_lsn
        assert published(transaction)[-1].lsn < fragments[-1].lsn < commit.end_lsn
        for change, true_change in zip(changes, published(transaction), strict=True):
            assert as_truth(change, true_change.lsn) == true_change
            seen[true_change.operation] += 1
    assert seen == {"insert": 5914, "update": 196, "delete": 56, "truncate": 6}


def test_the_recording_has_what_the_comparison_should_cover(transactions: list[list[TransactionFragment]]) -> None:
    """Old rows of both kinds, omitted values, NULLs, quotes, non-ASCII text: without them, agreement means little."""
    changes = [change for fragments in transactions for fragment in fragments for change in fragment.changes]
    updates = [change for change in changes if isinstance(change, Update)]
    key_only = [update for update in updates if update.old is not None and len(update.old) < len(update.new)]
    full = [update for update in updates if update.old is not None and len(update.old) == len(update.new)]
    values = [value for update in updates for value in update.new.values()]
    assert (len(key_only), len(full), len(updates)) == (29, 17, 196)
    assert all(update.relation.replica_identity == "full" for update in full)
    assert sum(len(update.new) < len(update.relation.columns) for update in updates) == 57
    assert sum(value is None for value in values) > 50
    assert sum('"' in value and not value.isascii() for value in values if value is not None) > 20
    assert {change.relation.table for change in changes} == PUBLISHED


def test_a_transaction_that_touches_no_published_table_is_not_in_the_stream(
    truth: list[TruthTransaction], transactions: list[list[TransactionFragment]]
) -> None:
    """Only transactions with a published change are sent, so an ack may have to pass commits that nobody receives."""
    sent = {fragments[0].xid for fragments in transactions}
    unsent = {transaction.xid for transaction in truth if not published(transaction)}
    assert len(truth) == 386
    assert len(unsent) == 17
    assert {transaction.xid for transaction in truth} - unsent == sent


def test_fragments_of_the_recording_keep_the_rules_of_the_chain(transactions: list[list[TransactionFragment]]) -> None:
    """Offsets strictly increase over the whole stream; one begin and one commit each; at most 100 changes."""
    last_log_offset = LogOffset.before_all()
    sizes = []
    for fragments in transactions:
        assert [fragment.has_begin for fragment in fragments] == [True] + [False] * (len(fragments) - 1)
        assert [fragment.commit is not None for fragment in fragments] == [False] * (len(fragments) - 1) + [True]
        for fragment in fragments:
            assert 1 <= fragment.change_count <= 100
            assert last_log_offset < fragment.last_log_offset == fragment.changes[-1].offset
            last_log_offset = fragment.last_log_offset
        offsets = [change.offset for fragment in fragments for change in fragment.changes]
        assert offsets == [LogOffset(fragments[0].lsn, 2 * index) for index in range(len(offsets))]
        sizes.append(len(offsets))
    assert {100, 101, 200, 300} <= set(sizes)
    assert max(sizes) > 1200


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 4, 5, 6, 7, 1_000_000])
def test_the_batch_size_changes_where_a_transaction_is_cut_and_nothing_else(
    max_batch_size: int, transactions: list[list[TransactionFragment]]
) -> None:
    """A resend may cut a transaction elsewhere; its changes, offsets and commit stay the same."""
    for cut, reference in zip(by_transaction(FragmentConverter(max_batch_size)), transactions, strict=True):
        assert max(fragment.change_count for fragment in cut) <= max_batch_size
        assert [c for fragment in cut for c in fragment.changes] == [c for f in reference for c in f.changes]
        assert (cut[-1].lsn, cut[-1].commit) == (reference[-1].lsn, reference[-1].commit)
        assert cut[-1].last_log_offset == reference[-1].last_log_offset
        assert sum(fragment.has_begin for fragment in cut) == 1


@pytest.mark.parametrize("max_batch_bytes", [1, 300, 1_000, 10_000])
def test_the_byte_limit_changes_where_a_transaction_is_cut_and_nothing_else(
    max_batch_bytes: int, transactions: list[list[TransactionFragment]]
) -> None:
    """Also in a real workload, with rows of many sizes, no fragment of several changes exceeds it."""
    converter = FragmentConverter(max_batch_bytes=max_batch_bytes)
    for cut, reference in zip(by_transaction(converter), transactions, strict=True):
        for fragment in cut:
            size = sum(map(change_bytes, fragment.changes))
            assert size <= max_batch_bytes or fragment.change_count == 1
        assert [c for fragment in cut for c in fragment.changes] == [c for f in reference for c in f.changes]
        assert (cut[-1].commit, cut[-1].last_log_offset) == (reference[-1].commit, reference[-1].last_log_offset)
        assert sum(fragment.has_begin for fragment in cut) == 1
        assert cut[-1].changes or not reference[-1].changes
