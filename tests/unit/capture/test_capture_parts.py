"""The collector's pure parts: sources and their history, the registry of shapes, and the order of publishing."""

from dataclasses import replace

import pytest

from flushtracker.capture.shapes.shape_registry import ShapeRegistry
from flushtracker.capture.source.prior_state import Succession, check_new_slot
from flushtracker.capture.wire.history_check import ResendCheck, TransactionIdentity, check_positions
from flushtracker.errors import SlotError
from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition, dependency_layers
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import SourceName

USERS = ShapeDefinition("users", ("public", "users"), where="id < 5")
LAST = TransactionIdentity(500, 42, "t1")
ENTRY = ShapeEntry(
    "7/1/s",
    replace(USERS, primary_key=("id",), partitions=(("public", "users_1"),), snapshot=True),
    1,
    LogOffset(100, 0),
)


def test_a_source_without_entries_has_no_epoch() -> None:
    """Neither another slot's source nor a slot whose name ends in a number counts as an epoch of this one."""
    base = SourceName("7", 1, "s")
    assert base.last_epoch(["7/2/s", "7/1/s2", "7/1/s/x"]) is None
    assert base.last_epoch(["7/1/s"]) == 0


@pytest.mark.parametrize(
    ("wal_lsn", "confirmed_lsn", "published_lsn"), [(500, 100, None), (500, 301, 400), (500, 100, 500)]
)
def test_a_server_that_continues_the_published_history_is_accepted(
    wal_lsn: int, confirmed_lsn: int, published_lsn: int | None
) -> None:
    """The slot may lag behind the ack if capture had no time to confirm it; 300 is acknowledged here."""
    check_positions("7/1/s", wal_lsn=wal_lsn, confirmed_lsn=confirmed_lsn, safe_lsn=300, published_lsn=published_lsn)


@pytest.mark.parametrize(
    ("wal_lsn", "confirmed_lsn", "published_lsn", "message"),
    [
        (
            299,
            100,
            None,
            r"WAL ends at 0/12B, but 0/12C was published or acknowledged before: it was probably restored",
        ),
        (399, 100, 400, r"WAL ends at 0/18F, but 0/190 was published"),
        (500, 302, 400, r"slot is at 0/12E, but only changes up to 0/12C are acknowledged: another client advanced"),
    ],
)
def test_a_server_with_another_history_is_refused_with_both_positions(
    wal_lsn: int, confirmed_lsn: int, published_lsn: int | None, message: str
) -> None:
    """The message says what to do: start a new epoch, or use the right ack table."""
    with pytest.raises(SlotError, match=f"{message}.*--new-epoch"):
        check_positions(
            "7/1/s", wal_lsn=wal_lsn, confirmed_lsn=confirmed_lsn, safe_lsn=300, published_lsn=published_lsn
        )


def test_the_last_published_transaction_must_be_resent() -> None:
    """Transactions before it are not checked, and everything after it is new."""
    check = ResendCheck("7/1/s", LAST, confirmed_lsn=300)
    check.handle_keepalive(500)
    check.handle_transaction(TransactionIdentity(400, 40, "t0"))
    check.handle_transaction(LAST)
    check.handle_transaction(TransactionIdentity(600, 50, "t2"))
    check.handle_keepalive(700)


@pytest.mark.parametrize(
    "transaction",
    [TransactionIdentity(500, 43, "t1"), TransactionIdentity(501, 42, "t1"), TransactionIdentity(500, 42, "t2")],
    ids=str,
)
def test_another_transaction_in_its_place_means_another_history(transaction: TransactionIdentity) -> None:
    """A restored server that has grown past that LSN has other transactions there, or none."""
    with pytest.raises(SlotError, match=r"transaction 42 at 0/1F4 \(t1\) was published before.*has diverged since"):
        ResendCheck("7/1/s", LAST, 300).handle_transaction(transaction)
    with pytest.raises(SlotError, match="the server has sent everything up to 0/1F5 without it"):
        ResendCheck("7/1/s", LAST, 300).handle_keepalive(501)


def test_no_resend_is_expected_when_the_slot_was_confirmed_past_it() -> None:
    """The server does not resend what was confirmed."""
    ResendCheck("7/1/s", LAST, confirmed_lsn=501).handle_transaction(TransactionIdentity(600, 50, "t2"))


def test_a_transaction_that_the_acks_say_was_not_there_means_another_history() -> None:
    """The source was idle since the copy: keepalives were acknowledged, and the server has a transaction below them."""
    check = ResendCheck("7/1/s", LAST, confirmed_lsn=501, acknowledged_lsn=600)
    with pytest.raises(SlotError, match=r"sends transaction 50 .* up to 0/258 is acknowledged without it.*diverged"):
        check.handle_transaction(TransactionIdentity(600, 50, "t2"))
    ResendCheck("7/1/s", LAST, 501, acknowledged_lsn=600).handle_transaction(TransactionIdentity(601, 50, "t2"))


def test_no_slot_is_created_where_one_was_captured() -> None:
    """On any timeline of the server; a new epoch begins another source, and a server without one begins its first."""
    base, entries = SourceName("7", 1, "s"), [SourceEntry("7/2/s", LogOffset(100, 0), "1/1")]
    with pytest.raises(SlotError, match="slot s is gone from the server, and source 7/2/s was captured from it"):
        check_new_slot(entries, base, Succession())
    check_new_slot(entries, base, Succession(new_epoch=True))
    check_new_slot(entries, SourceName("7", 1, "other"), Succession())
    with pytest.raises(SlotError, match="system identifier 8, but slot s was captured before: 7/2/s on server 7"):
        check_new_slot(entries, SourceName("8", 1, "s"), Succession())
    check_new_slot(entries, SourceName("8", 1, "s"), Succession(upgraded_from="7"))


def test_an_unchanged_definition_changes_nothing() -> None:
    """A key and partitions that were filled in from the catalog are no difference."""
    diff = ShapeRegistry([ENTRY]).compare([USERS])
    assert diff == ShapeRegistry([ENTRY]).compare([replace(USERS, snapshot=True)])
    assert (diff.added, diff.updated, diff.removed, diff.ended) == ((), (), (), ())


def test_shapes_are_added_updated_and_removed_as_in_the_file() -> None:
    """A flush policy may change under the same id; anything that affects routing may not."""
    other = ShapeDefinition("orders", ("public", "orders"))
    registry = ShapeRegistry([ENTRY, ShapeEntry("7/1/s", replace(USERS, id="gone"), 1, LogOffset(100, 0))])
    diff = registry.compare([replace(USERS, flush=FlushPolicy(bytes=5)), other])
    assert (diff.added, diff.removed) == ((other,), ("gone",))
    assert [entry.definition.flush.bytes for entry in diff.updated] == [5]
    assert diff.updated[0].definition.partitions == ENTRY.definition.partitions


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(USERS, where="id < 6"), "differs from its registered definition in where;"),
        (
            replace(USERS, columns=("id",), replica="full"),
            "differs from its registered definition in columns and replica;",
        ),
        (replace(USERS, primary_key=("x",)), "differs from its registered definition in primary_key;"),
        (replace(USERS, snapshot=False), "differs from its registered definition in snapshot;"),
    ],
)
def test_a_changed_definition_needs_a_new_id(changed: ShapeDefinition, message: str) -> None:
    """Otherwise a resend would route a transaction to other shapes than the first time."""
    diff = ShapeRegistry([ENTRY]).compare([changed])
    assert [(fault.shape_id, message in str(fault.error)) for fault in diff.refused] == [("users", True)]
    assert (diff.added, diff.updated, diff.removed) == ((), (), ())


def test_a_removed_id_is_refused_and_an_ended_shape_stays_ended() -> None:
    """The id of a removed shape must not be reused; a shape whose table is gone is only reported as ended."""
    removed = replace(ENTRY, removed_at=LogOffset(200, 0))
    (fault,) = ShapeRegistry([removed]).compare([USERS]).refused
    assert "'users' was removed at 0/C8+0; an id is never used twice" in str(fault.error)
    ended = replace(removed, ended_because="its table is gone")
    registry = ShapeRegistry([ended])
    assert registry.compare([USERS]).ended == (ended,)
    assert (registry.live, registry.removed, registry.compare([]).removed) == ((), (ended,), ())


def test_layers_follow_the_longest_chain_even_a_very_long_one() -> None:
    """A shape is above all it depends on, in any order of the file, and no recursion limit applies."""
    layers = dependency_layers({str(number): [str(number - 1)] for number in range(4999, 0, -1)})
    assert layers["4999"] == 4999
    assert "0" not in layers
    assert dependency_layers({"x": ["y", "z"], "y": ["z"]}) == {"x": 2, "y": 1}


def test_dependencies_are_those_among_live_shapes() -> None:
    """One that was removed, or was never defined, holds nothing up; a shape that depends on none is not listed."""
    entries = [
        replace(ENTRY, definition=replace(USERS, id=shape_id, depends_on=tuple(others)))
        for shape_id, others in {"x": "yz", "y": ["z", "absent"], "z": []}.items()
    ]
    registry = ShapeRegistry(entries)
    assert registry.dependencies == {"x": ("y", "z"), "y": ("z",)}
    registry.put(replace(entries[1], removed_at=LogOffset(200, 0)))
    assert registry.dependencies == {"x": ("z",)}
    registry.put(replace(entries[0], definition=replace(USERS, id="x")))
    assert registry.dependencies == {}
