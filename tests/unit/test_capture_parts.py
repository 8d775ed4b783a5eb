"""The collector's pure parts: sources and their history, the registry of shapes, and the order of publishing."""

from dataclasses import replace

import pytest

from flushtracker.capture.history_check import ResendCheck, TransactionIdentity, check_positions
from flushtracker.capture.shape_registry import ShapeRegistry
from flushtracker.errors import ShapeError, SlotError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition, dependency_layers
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import last_epoch

USERS = ShapeDefinition("users", ("public", "users"), where="id < 5")
LAST = TransactionIdentity(500, 42, "t1")
ENTRY = ShapeEntry(
    "7/1/s", replace(USERS, primary_key=("id",), partitions=(("public", "users_1"),)), 1, LogOffset(100, 0)
)


def test_a_source_without_entries_has_no_epoch() -> None:
    """Neither another slot's source nor one whose slot's name ends in a number is taken for it."""
    assert last_epoch("7/1/s", ["7/2/s", "7/1/s2", "7/1/s/x"]) is None
    assert last_epoch("7/1/s", ["7/1/s"]) == 0


@pytest.mark.parametrize(
    ("wal_lsn", "confirmed_lsn", "published_lsn"), [(500, 100, None), (500, 301, 400), (500, 100, 500)]
)
def test_a_server_that_goes_on_is_taken(wal_lsn: int, confirmed_lsn: int, published_lsn: int | None) -> None:
    """The slot may lag behind the ack, which capture had no time to tell it; 300 is acknowledged here."""
    check_positions("7/1/s", wal_lsn=wal_lsn, confirmed_lsn=confirmed_lsn, safe_lsn=300, published_lsn=published_lsn)


@pytest.mark.parametrize(
    ("wal_lsn", "confirmed_lsn", "published_lsn", "message"),
    [
        (299, 100, None, r"WAL ends at 0/12B, but 0/12C was published or acknowledged before: it was restored"),
        (399, 100, 400, r"WAL ends at 0/18F, but 0/190 was published"),
        (500, 302, 400, r"stands at 0/12E, but only what is up to 0/12C is acknowledged: somebody else has moved"),
    ],
)
def test_a_server_that_does_not_go_on_is_refused_with_both_places(
    wal_lsn: int, confirmed_lsn: int, published_lsn: int | None, message: str
) -> None:
    """What to do is in the message: a new epoch, or the right ack table."""
    with pytest.raises(SlotError, match=f"{message}.*--new-epoch"):
        check_positions(
            "7/1/s", wal_lsn=wal_lsn, confirmed_lsn=confirmed_lsn, safe_lsn=300, published_lsn=published_lsn
        )


def test_the_transaction_published_last_must_come_again() -> None:
    """Transactions before it are anyone's; then it comes, and what follows is new."""
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
def test_another_transaction_in_its_place_is_another_history(transaction: TransactionIdentity) -> None:
    """A restored server that has grown past the place has other transactions there, or none."""
    with pytest.raises(SlotError, match=r"transaction 42 at 0/1F4 of t1 was published before.*another history"):
        ResendCheck("7/1/s", LAST, 300).handle_transaction(transaction)
    with pytest.raises(SlotError, match="nothing comes up to 0/1F5 instead"):
        ResendCheck("7/1/s", LAST, 300).handle_keepalive(501)


def test_nothing_is_expected_where_the_slot_was_confirmed_past_it() -> None:
    """The server does not send again what was confirmed."""
    ResendCheck("7/1/s", LAST, confirmed_lsn=501).handle_transaction(TransactionIdentity(600, 50, "t2"))


def test_the_same_definition_asks_for_nothing() -> None:
    """Neither the key nor the partitions that the catalog filled in make it another."""
    wanted = ShapeRegistry([ENTRY]).compare([USERS])
    assert (wanted.added, wanted.updated, wanted.removed, wanted.ended) == ((), (), (), ())


def test_shapes_are_added_updated_and_removed_as_the_file_has_them() -> None:
    """A flush policy may change under an id; whatever routes may not."""
    other = ShapeDefinition("orders", ("public", "orders"))
    registry = ShapeRegistry([ENTRY, ShapeEntry("7/1/s", replace(USERS, id="gone"), 1, LogOffset(100, 0))])
    wanted = registry.compare([replace(USERS, flush=FlushPolicy(bytes=5)), other])
    assert (wanted.added, wanted.removed) == ((other,), ("gone",))
    assert [entry.definition.flush.bytes for entry in wanted.updated] == [5]
    assert wanted.updated[0].definition.partitions == ENTRY.definition.partitions


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(USERS, where="id < 6"), "another where than"),
        (replace(USERS, columns=("id",), replica="full"), "another columns and replica than"),
        (replace(USERS, primary_key=("x",)), "another primary_key than"),
        (replace(USERS, partitions=(("public", "users_2"),)), "another partitions than"),
    ],
)
def test_a_changed_definition_needs_a_new_id(changed: ShapeDefinition, message: str) -> None:
    """Else a resend would route a transaction to other shapes than the first time."""
    with pytest.raises(ShapeError, match=message):
        ShapeRegistry([ENTRY]).compare([changed])


def test_a_removed_id_is_refused_and_one_that_was_ended_stays_ended() -> None:
    """Who removed a shape must not use its id again; whose table went away is only told so."""
    removed = replace(ENTRY, removed_at=LogOffset(200, 0))
    with pytest.raises(ShapeError, match=r"'users' was removed at 0/C8\+0; an id is never used twice"):
        ShapeRegistry([removed]).compare([USERS])
    ended = replace(removed, ended_because="its table is gone")
    registry = ShapeRegistry([ended])
    assert registry.compare([USERS]).ended == (ended,)
    assert (registry.live, registry.removed, registry.compare([]).removed) == ((), (ended,), ())


def test_layers_follow_the_longest_chain_also_a_very_long_one() -> None:
    """A shape is above all it depends on, whatever the order of the file; no recursion limit is in the way."""
    chain = [
        ShapeDefinition(str(number), ("a", "b"), depends_on=(str(number - 1),) if number else ())
        for number in range(5000)
    ]
    layers = dependency_layers(reversed(chain))
    assert layers["4999"] == 4999
    assert "0" not in layers
    both = [replace(USERS, id="x", depends_on=("y", "z")), replace(USERS, id="y", depends_on=("z", "absent"))]
    assert dependency_layers([*both, replace(USERS, id="z")]) == {"x": 2, "y": 1}
