"""Standby status updates: never beyond what was acknowledged, published and received, and never backwards."""

from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.capture.wire.outbox import DeliveryWindow
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.errors import DecodeError
from flushtracker.postgres.replication_frames import Keepalive, XLogData, decode_frame


def flush_position(status: StandbyStatus) -> int:
    """The flush position of the update that would be sent now."""
    kind, _, flushed, applied, _, _ = unpack(">cQQQqB", status.status_update(0))
    assert kind == b"r"
    assert flushed == applied == status.flushed_lsn
    return int(flushed)


def test_nothing_is_confirmed_before_anything_is_published() -> None:
    """After a start the server resends everything unconfirmed; until that is published, an old ack means nothing."""
    status = StandbyStatus(1000, acknowledged_lsn=4000)
    status.handle_received(9000)
    assert flush_position(status) == 1000


_EVENTS = st.lists(st.tuples(st.sampled_from(["received", "published", "ack"]), st.integers(0, 40)), max_size=30)


@given(confirmed=st.integers(0, 20), events=_EVENTS)
def test_the_position_is_safe_and_rises_in_any_order_of_events(confirmed: int, events: list[tuple[str, int]]) -> None:
    """The oracle: the greatest of each kind so far, and the slot's position at the start.

    The server resends commits at or above the position, so ack + 1 skips the acknowledged transaction.
    """
    status = StandbyStatus(confirmed)
    greatest = {"received": confirmed, "published": confirmed - 1, "ack": -1}
    before = confirmed
    handlers = {"received": status.handle_received, "published": status.handle_published, "ack": status.handle_ack}
    for kind, lsn in events:
        handlers[kind](lsn)
        greatest[kind] = max(greatest[kind], lsn)
        now = flush_position(status)
        assert now == max(before, min(greatest["ack"] + 1, greatest["published"] + 1, greatest["received"]))
        before = now


def test_an_update_has_the_layout_of_the_protocol() -> None:
    """Microseconds count from 2000, and the write position is past what was published, as far as it was received."""
    status = StandbyStatus(7)
    for received, published, written in ((9, 6, 7), (9, 7, 8), (9, 20, 9)):
        status.handle_received(received)
        status.handle_published(published)
        update = status.status_update(946_684_800_000_000 + 5, reply_requested=True)
        assert unpack(">cQQQqB", update) == (b"r", written, 7, 7, 5, 1)


def test_nothing_is_confirmed_while_it_is_held() -> None:
    """Not even what was published and acknowledged; what was confirmed before stays."""
    status = StandbyStatus(1000, published_lsn=3000, acknowledged_lsn=2000)
    status.handle_received(5000)
    status.is_held = True
    assert flush_position(status) == 1000
    status.is_held = False
    assert flush_position(status) == 2001
    status.is_held = True
    assert flush_position(status) == 2001


def test_nothing_counts_as_published_while_it_is_held() -> None:
    """Otherwise a snapshot of another server would be appended, because the one before had published as far."""
    status = StandbyStatus(1000)
    status.handle_published(3000)
    status.handle_received(5000)
    for status.is_held, written in ((True, 1000), (False, 3001)):
        assert unpack(">cQQQqB", status.status_update(946_684_800_000_000))[1:4] == (written, 1000, 1000)


def test_frames_are_read_strictly() -> None:
    """WAL data keep their position, keepalives their reply request; anything else is an error."""
    data = b"w" + (5).to_bytes(8, "big") + (5).to_bytes(8, "big") + (0).to_bytes(8, "big") + b"B..."
    assert decode_frame(data) == XLogData(5, b"B...")
    assert decode_frame(b"k" + (6).to_bytes(8, "big") + bytes(8) + b"\1") == Keepalive(6, reply_requested=True)
    for frame in (b"", b"k", b"w123", b"k" + bytes(18), b"x" + bytes(24)):
        with pytest.raises(DecodeError, match="neither WAL data nor a keepalive"):
            decode_frame(frame)


@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_only_whole_prefixes_are_published_in_any_order_of_confirmations(data: st.DataObject, sizes: list[int]) -> None:
    """The oracle: the longest prefix of fragments whose events have all been confirmed."""
    calls: list[int] = []
    window = DeliveryWindow(calls.append)
    confirmations = [window.begin(size, index) for index, size in enumerate(sizes)]
    order = data.draw(st.permutations([index for index, size in enumerate(sizes) for _ in range(size)]))
    left, published = list(sizes), list[int]()
    for index in order:
        left[index] -= 1
        confirmations[index]()
        prefix = next((position for position, count in enumerate(left) if count), len(left)) - 1
        if prefix != max(published, default=-1):
            published.append(prefix)
        assert calls == published
        assert window.pending_fragments == len(sizes) - 1 - prefix
