"""The converter: where transactions are cut, what rows become, and which streams it refuses."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError, TransactionTooLargeError
from flushtracker.wal.changes import (
    CHANGE_BYTES,
    Change,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    TransactionFragment,
    Truncate,
    Update,
    change_bytes,
)
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES, FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import (
    Begin,
    CommitMessage,
    Message,
    OtherMessage,
    RelationMessage,
    RowMessage,
    TruncateMessage,
)
from tests.support import row_messages
from tests.support.row_messages import UNCHANGED

LSN = 23997288
TIMESTAMP = "2026-11-21T01:02:03.456789Z"
BEGIN = Begin(LSN, TIMESTAMP, 742)
COMMIT = CommitMessage(LSN, LSN + 48, TIMESTAMP)


def relation(
    relation_id: int, name: str, columns: str, identity: Literal["default", "full"] = "default"
) -> RelationMessage:
    """``columns`` are names; one with a star after it is a key."""
    described = tuple(Column(column.rstrip("*"), 25, is_key=column.endswith("*")) for column in columns.split())
    return RelationMessage(Relation(relation_id, "public", name, identity, described))


USERS = relation(7, "users", "id* name bio")
ORDERS = relation(8, "orders", "id*")
AUDIT = relation(9, "audit", "at* who*", "full")


def insert(number: int) -> RowMessage:
    return row_messages.insert(8, (str(number),))


def convert(messages: Iterable[Message], converter: FragmentConverter) -> Iterator[TransactionFragment]:
    for message in messages:
        yield from converter.handle(message)
        converter.check_invariants()


def fragments_of(
    *messages: Message, max_batch_size: int = 100, max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
) -> list[TransactionFragment]:
    converter = FragmentConverter(max_batch_size, max_batch_bytes=max_batch_bytes)
    return list(convert([USERS, ORDERS, AUDIT, *messages], converter))


def only_change(message: Message) -> Change:
    (fragment,) = fragments_of(BEGIN, message, COMMIT)
    (change,) = fragment.changes
    return change


# Where transactions are cut.


def test_an_empty_transaction_is_one_commit_fragment() -> None:
    """Its commit may be acknowledged like any other; its offset is that of a first operation."""
    assert fragments_of(BEGIN, COMMIT) == [
        TransactionFragment(742, LSN, LogOffset(LSN, 0), has_begin=True, commit=Commit(TIMESTAMP, LSN + 48))
    ]


def test_a_truncate_is_one_operation_for_each_relation() -> None:
    """In the order in which the server lists them."""
    (fragment,) = fragments_of(BEGIN, TruncateMessage((9, 7), cascade=True, restart_identity=False), insert(1), COMMIT)
    assert fragment.changes == (
        Truncate(AUDIT.relation, LogOffset(LSN, 0)),
        Truncate(USERS.relation, LogOffset(LSN, 2)),
        Insert(ORDERS.relation, LogOffset(LSN, 4), {"id": "1"}),
    )


def test_a_truncate_of_no_relation_is_no_operation() -> None:
    """The transaction is then empty."""
    (fragment,) = fragments_of(BEGIN, TruncateMessage((), cascade=False, restart_identity=False), COMMIT)
    assert fragment.changes == ()


def insert_of(characters: int, text: str = "x") -> RowMessage:
    """A row of ``orders`` with a value of so many characters."""
    return row_messages.insert(8, (text * characters,))


def test_bytes_are_those_of_utf_8() -> None:
    """A character may have up to four."""
    sizes = [change_bytes(only_change(insert_of(1000, text))) for text in ("x", "é", "漢", "😀")]
    assert [size - sizes[0] for size in sizes] == [0, 1000, 2000, 3000]


def test_the_old_row_counts_too() -> None:
    """Both rows of an update may be in its event."""
    old, new = ("t", "x" * 300), ("t", "y" * 500)
    both = change_bytes(only_change(row_messages.update(9, new, old=old)))
    alone = change_bytes(only_change(row_messages.update(9, new)))
    assert both - alone > 300
    assert alone > 500


def test_a_value_that_a_key_row_should_not_have_is_neither_kept_nor_counted() -> None:
    """The server sends NULL there, unless the relation's flags and the row disagree on the key."""
    with_value, without = ("1", "x" * 300, None), ("1", None, None)
    rows = [row_messages.delete(7, key=with_value), row_messages.update(7, ("2", "y", None), key=with_value)]
    plain = [row_messages.delete(7, key=without), row_messages.update(7, ("2", "y", None), key=without)]
    limit = sum(bytes_of(fragment) for fragment in fragments_of(BEGIN, *plain, COMMIT))
    fragments = fragments_of(BEGIN, *rows, COMMIT, max_batch_bytes=limit)
    assert fragments == fragments_of(BEGIN, *plain, COMMIT)
    assert len(fragments) == 1


@given(
    contents=st.lists(st.lists(st.sampled_from([None, 0, 1, 50, 99, 100, 101, 300, 1000]), max_size=25), max_size=4),
    max_batch_size=st.sampled_from([1, 2, 3, 5, 100]),
    max_batch_bytes=st.sampled_from([1, 180, 181, 200, 500, 1000, 5000]),
)
def test_cutting_by_count_and_by_bytes_changes_nothing_but_the_cuts(
    contents: list[list[int | None]], max_batch_size: int, max_batch_bytes: int
) -> None:
    """For rows of any size (``None``: one that is skipped), no fragment exceeds a limit, and none could take one more.

    ``convert`` checks after each message that no more is held than one fragment may have.
    """
    cut, whole = [
        list(transactions_of(contents, FragmentConverter(count, max_batch_bytes=size)))
        for count, size in ((max_batch_size, max_batch_bytes), (1000, 1 << 40))
    ]
    assert [change for fragment in cut for change in fragment.changes] == [c for f in whole for c in f.changes]
    assert [fragment.xid for fragment in cut if fragment.has_begin] == list(range(len(contents)))
    assert [fragment.xid for fragment in cut if fragment.commit is not None] == list(range(len(contents)))
    offsets = [fragment.last_log_offset for fragment in cut]
    assert offsets == sorted(set(offsets))
    for fragment in cut:
        assert fragment.change_count <= max_batch_size
        assert bytes_of(fragment) <= max_batch_bytes or fragment.change_count == 1
    for fragment, after in pairwise(cut):
        if fragment.commit is None:
            next_bytes = change_bytes(after.changes[0])
            assert fragment.change_count == max_batch_size or bytes_of(fragment) + next_bytes > max_batch_bytes


def bytes_of(fragment: TransactionFragment) -> int:
    return sum(map(change_bytes, fragment.changes))


def transactions_of(
    contents: Iterable[Iterable[int | None]], converter: FragmentConverter
) -> Iterator[TransactionFragment]:
    """Fragments of transactions with rows of the given sizes."""
    yield from convert([ORDERS], converter)
    for index, sizes in enumerate(contents):
        lsn = LSN + 100 * index
        yield from convert([Begin(lsn, TIMESTAMP, index)], converter)
        for size in sizes:
            if size is None:
                converter.skip_row(insert(index))
            else:
                yield from convert([insert_of(size)], converter)
        yield from convert([CommitMessage(lsn, lsn + 48, TIMESTAMP)], converter)


transactions = st.lists(
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3]), max_size=25)  # how many relations a TRUNCATE names; 0: an insert
)


@given(shapes=transactions, max_batch_size=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 100]))
def test_cutting_changes_nothing_but_the_cuts(shapes: list[list[int]], max_batch_size: int) -> None:
    """With any limit the changes are those of one fragment per transaction, and the chain's rules hold."""
    messages: list[Message] = [USERS, ORDERS, AUDIT]
    for index, operations in enumerate(shapes):
        lsn = LSN + 100 * index
        messages.append(Begin(lsn, TIMESTAMP, index))
        for count in operations:
            ids = (7, 8, 9)[:count]
            messages.append(TruncateMessage(ids, cascade=False, restart_identity=False) if count else insert(index))
        messages.append(CommitMessage(lsn, lsn + 48, TIMESTAMP))
    cut = list(convert(messages, FragmentConverter(max_batch_size)))
    whole = list(convert(messages, FragmentConverter(1000)))
    assert [change for fragment in cut for change in fragment.changes] == [c for f in whole for c in f.changes]
    assert [fragment.xid for fragment in cut if fragment.has_begin] == list(range(len(shapes)))
    assert [fragment.xid for fragment in cut if fragment.commit is not None] == list(range(len(shapes)))
    offsets = [fragment.last_log_offset for fragment in cut]
    assert offsets == sorted(set(offsets))
    assert all(fragment.change_count <= max_batch_size for fragment in cut)


@given(wanted=st.lists(st.lists(st.booleans(), max_size=25)), max_batch_size=st.sampled_from([1, 2, 3, 5, 100]))
def test_a_skipped_row_leaves_the_others_unchanged(wanted: list[list[bool]], max_batch_size: int) -> None:
    """They keep their offsets, and are cut as if they were alone."""
    converter = FragmentConverter(max_batch_size)
    list(convert([ORDERS], converter))
    for index, rows in enumerate(wanted):
        begin = Begin(LSN + 100 * index, TIMESTAMP, index)
        fragments = list(converter.handle(begin))
        for number, is_wanted in enumerate(rows):
            if is_wanted:
                fragments += converter.handle(insert(number))
            else:
                converter.skip_row(insert(number))
            converter.check_invariants()
        fragments += converter.handle(CommitMessage(begin.final_lsn, begin.final_lsn + 48, TIMESTAMP))
        offsets = [LogOffset(begin.final_lsn, 2 * number) for number, is_wanted in enumerate(rows) if is_wanted]
        cuts = range(0, max(len(offsets), 1), max_batch_size)
        parts = [offsets[start : start + max_batch_size] for start in cuts]
        assert [[change.offset for change in fragment.changes] for fragment in fragments] == parts
        ends = [part[-1] if part else LogOffset(begin.final_lsn, 0) for part in parts]
        assert [fragment.last_log_offset for fragment in fragments] == ends
        assert [fragment.commit is not None for fragment in fragments] == [False] * (len(parts) - 1) + [True]


def test_a_row_cannot_be_skipped_outside_a_transaction() -> None:
    """It is refused like one that is decoded."""
    with pytest.raises(DecodeError, match=r"^pgoutput Insert arrived outside a transaction; reconnect, "):
        FragmentConverter().skip_row(insert(1))


# Limits.


def test_a_transaction_over_the_limit_is_refused() -> None:
    """The error has the transaction, its size and the limit; exactly the limit passes. Skipped rows count too."""
    size = len(insert(1).data)
    converter = FragmentConverter(max_batch_size=2, max_tx_size=3 * size)
    within: list[Message] = [ORDERS, BEGIN, insert(1), insert(2), insert(3)]
    assert sum(fragment.change_count for fragment in convert([*within, COMMIT], converter)) == 3
    list(convert(within, converter))
    refused = f"^transaction 742 has reached {4 * size} bytes, but max_tx_size is {3 * size}; "
    with pytest.raises(TransactionTooLargeError, match=refused):
        converter.handle(insert(4))
    converter = FragmentConverter(max_batch_size=2, max_tx_size=3 * size)
    list(convert(within, converter))
    with pytest.raises(TransactionTooLargeError, match=refused):
        converter.skip_row(insert(4))


def test_a_truncate_counts_once_for_each_relation_against_the_limit() -> None:
    """It counts as the operations that it becomes."""
    converter = FragmentConverter(max_tx_size=2 * CHANGE_BYTES)
    list(convert([USERS, ORDERS, AUDIT, BEGIN], converter))
    with pytest.raises(TransactionTooLargeError, match="has reached 240 bytes"):
        converter.handle(TruncateMessage((7, 8, 9), cascade=False, restart_identity=False))


@pytest.mark.parametrize(
    "limits", [{"max_batch_size": 0}, {"max_batch_size": -1}, {"max_tx_size": 0}, {"max_batch_bytes": 0}]
)
def test_a_limit_below_one_is_refused(limits: dict[str, Any]) -> None:
    """No change could ever pass."""
    (name,) = limits
    with pytest.raises(ValueError, match=f"^{name} is {limits[name]}, but must be at least 1$"):
        FragmentConverter(**limits)


# Rows.


def test_a_row_maps_names_to_text_or_none() -> None:
    """NULL and the empty string stay distinct."""
    change = only_change(row_messages.insert(7, ("1", None, "")))
    assert change == Insert(USERS.relation, LogOffset(LSN, 0), {"id": "1", "name": None, "bio": ""})


def test_an_unchanged_toast_value_is_absent_from_the_new_row() -> None:
    """It is not None, which would mean that it became NULL."""
    change = only_change(row_messages.update(7, ("1", None, UNCHANGED)))
    assert change == Update(USERS.relation, LogOffset(LSN, 0), None, {"id": "1", "name": None})


def test_a_key_only_old_row_has_only_the_key_columns() -> None:
    """The server sends the others as NULL, and their values are unknown."""
    update = only_change(row_messages.update(7, ("2", "ann", UNCHANGED), key=("1", None, None)))
    assert update == Update(USERS.relation, LogOffset(LSN, 0), {"id": "1"}, {"id": "2", "name": "ann"})
    delete = only_change(row_messages.delete(7, key=("1", None, None)))
    assert delete == Delete(USERS.relation, LogOffset(LSN, 0), {"id": "1"})


def test_a_full_old_row_has_every_column() -> None:
    """A NULL in it is a NULL, and nothing is copied from it into the new row."""
    update = only_change(row_messages.update(9, ("t", UNCHANGED), old=("t", None)))
    assert update == Update(AUDIT.relation, LogOffset(LSN, 0), {"at": "t", "who": None}, {"at": "t"})
    delete = only_change(row_messages.delete(9, old=("t", None)))
    assert delete == Delete(AUDIT.relation, LogOffset(LSN, 0), {"at": "t", "who": None})


def test_a_relation_redefined_in_mid_transaction_applies_to_the_changes_after_it() -> None:
    """With ALTER TABLE between two inserts of one transaction, each keeps the relation it was sent with."""
    wider = relation(8, "orders", "id* note")
    (fragment,) = fragments_of(BEGIN, insert(1), wider, row_messages.insert(8, ("2", "n")), COMMIT)
    assert fragment.changes == (
        Insert(ORDERS.relation, LogOffset(LSN, 0), {"id": "1"}),
        Insert(wider.relation, LogOffset(LSN, 2), {"id": "2", "note": "n"}),
    )


def test_a_binary_value_is_refused_with_what_to_do() -> None:
    """Only text values are supported; the message names the column and does not show the value."""
    with pytest.raises(
        DecodeError, match=r"^column name of public\.users arrived in binary format, .* without the binary option$"
    ):
        only_change(row_messages.insert(7, ("1", b"secret", None)))


@pytest.mark.parametrize(
    "message",
    [
        row_messages.insert(7, ("1", "a")),
        row_messages.update(7, ("1", "a", "b", "c")),
        row_messages.update(7, ("1", "a", "b"), key=("1",)),
        row_messages.delete(7, key=()),
    ],
)
def test_a_row_with_more_or_fewer_values_than_columns_is_refused(message: Message) -> None:
    """Its values would be assigned to the wrong columns."""
    pattern = r"^a row of public\.users has \d values, but the relation has 3 columns; "
    with pytest.raises(DecodeError, match=pattern):
        only_change(message)


# Order.


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([insert(1)], "pgoutput Insert arrived outside a transaction"),
        ([row_messages.update(8, ("1",))], "pgoutput Update arrived outside a transaction"),
        ([row_messages.delete(8, key=("1",))], "pgoutput Delete arrived outside a transaction"),
        (
            [TruncateMessage((8,), cascade=False, restart_identity=False)],
            "pgoutput Truncate arrived outside a transaction",
        ),
        ([COMMIT], "pgoutput Commit arrived outside a transaction"),
        ([BEGIN, COMMIT, COMMIT], "pgoutput Commit arrived outside a transaction"),
        ([BEGIN, Begin(LSN + 1, "", 743)], "transaction 743 begins inside transaction 742, which is still open"),
        (
            [BEGIN, CommitMessage(LSN + 8, LSN + 48, "")],
            "transaction 742 began with commit LSN 0/16E2B68, but commits at 0/16E2B70",
        ),
        (
            [BEGIN, row_messages.insert(4, ("1",))],
            "pgoutput change of relation 4 arrived without a Relation message before it",
        ),
        (
            [BEGIN, TruncateMessage((8, 4), cascade=False, restart_identity=False)],
            "pgoutput change of relation 4 arrived without a Relation message before it",
        ),
    ],
)
def test_messages_out_of_order_are_refused(messages: list[Message], complaint: str) -> None:
    """Something was lost or read twice, so such a stream must not lead to an ack."""
    with pytest.raises(DecodeError, match=f"^{complaint}.*; reconnect"):
        fragments_of(*messages)


def test_a_resent_transaction_is_converted_again() -> None:
    """After a reconnect commit LSNs start lower; other code decides which of them are new."""
    again = fragments_of(BEGIN, insert(1), COMMIT, BEGIN, insert(1), COMMIT)
    assert again[0] == again[1]


def test_messages_that_change_no_table_are_skipped() -> None:
    """Inside a transaction and outside, they use no operation number."""
    other = OtherMessage()
    assert fragments_of(other, BEGIN, other, insert(1), other, COMMIT, other) == fragments_of(BEGIN, insert(1), COMMIT)


def test_the_converter_shows_whether_a_transaction_is_open() -> None:
    """A keepalive's position may be used only between transactions."""
    converter = FragmentConverter()
    states = []
    for message in (ORDERS, BEGIN, insert(1), COMMIT):
        converter.handle(message)
        states.append(converter.in_transaction)
    assert states == [False, True, True, False]


def test_an_old_row_that_was_sent_whole_is_kept_whole() -> None:
    """Whichever columns the relation has flagged as keys; of a key-only old row, the NULLs are left out."""
    whole = only_change(row_messages.delete(7, old=("1", "a", None)))
    keys = only_change(row_messages.delete(7, key=("1", None, None)))
    assert isinstance(whole, Delete)
    assert isinstance(keys, Delete)
    assert (whole.old, keys.old) == ({"id": "1", "name": "a", "bio": None}, {"id": "1"})
    update = only_change(row_messages.update(7, ("1", "b", None), old=("1", "a", None)))
    assert isinstance(update, Update)
    assert update.old == {"id": "1", "name": "a", "bio": None}


def test_check_invariants_detects_a_wrong_buffer() -> None:
    """The check that other tests rely on fails on too many changes or bytes, a wrong sum, and wrong offsets."""
    converter = FragmentConverter()
    assert not list(convert([ORDERS, BEGIN, *(insert(number) for number in range(100))], converter))
    assert len(list(converter.handle(insert(100)))) == 1
    converter.handle(insert(101))
    transaction = converter._transaction
    assert transaction is not None
    byte_count, changes = transaction.byte_count, list(transaction.changes)

    def refusal() -> str:
        with pytest.raises(AssertionError) as caught:
            converter.check_invariants()
        return str(caught.value)

    converter._max_batch_bytes = byte_count
    converter.check_invariants()
    converter._max_batch_bytes = byte_count - 1
    assert refusal() == f"{byte_count} bytes are buffered, at most {byte_count - 1} may be"
    converter._max_batch_bytes = DEFAULT_MAX_BATCH_BYTES
    converter._max_batch_size = 1
    assert refusal() == "2 of 102 changes are buffered, at most 1 may be"
    converter._max_batch_size = 100
    transaction.byte_count += 1
    assert refusal() == f"{byte_count} bytes are buffered, but {byte_count + 1} are counted"
    transaction.byte_count = byte_count
    for wrong in (LogOffset(LSN, 203), LogOffset(LSN, 204), LogOffset(LSN + 1, 202)):
        transaction.changes[:] = [changes[0], replace(changes[1], offset=wrong)]
        assert "not in transaction order" in refusal()
    transaction.changes[:] = reversed(changes)
    assert "not in transaction order" in refusal()
