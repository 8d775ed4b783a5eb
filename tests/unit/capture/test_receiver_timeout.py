"""The limit of silence: a server that replies as PostgreSQL does is never given up, and one that does not, in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.capture.wire.receiver_timeout import REPLY_REQUEST_S, SHORTEST_LIMIT_S, ReceiverTimeout
from flushtracker.errors import PostgresUnavailableError

TICK_S = 0.05
"""How often capture looks."""


@given(timeout_s=st.integers(0, 7_200), busy_s=st.integers(0, 10_000))
def test_a_busy_server_that_reads_every_half_wal_sender_timeout_is_never_given_up(timeout_s: int, busy_s: int) -> None:
    """It replies to the requests that it finds then; with a timeout of 0, it finds them when it is done."""
    limit = ReceiverTimeout(timeout_s, now_s=0)
    now_s = 0.0
    is_requested = False
    while now_s < busy_s:
        read_s = now_s + max(timeout_s / 2 or busy_s, 1)
        for look_s in (now_s + REPLY_REQUEST_S + TICK_S, read_s):
            if look_s <= read_s and limit.is_reply_due(look_s):
                is_requested = True
        now_s = read_s
        if is_requested:
            limit.handle_frames(now_s)
            is_requested = False


@given(timeout_s=st.floats(0.001, 7_200), last_s=st.floats(0, 1_000))
def test_a_server_that_never_replies_is_given_up_after_its_wal_sender_timeout(timeout_s: float, last_s: float) -> None:
    """Not before, and not much later; nothing is requested twice."""
    limit = ReceiverTimeout(timeout_s, now_s=0)
    limit.handle_frames(last_s)
    assert not limit.is_reply_due(last_s + REPLY_REQUEST_S - TICK_S)
    requested_s = last_s + REPLY_REQUEST_S + TICK_S
    assert limit.is_reply_due(requested_s)
    end_s = requested_s + max(timeout_s, SHORTEST_LIMIT_S)
    assert not limit.is_reply_due(end_s - TICK_S)
    with pytest.raises(PostgresUnavailableError, match=r"has sent nothing for .* by its wal_sender_timeout of"):
        limit.is_reply_due(end_s + TICK_S)
    limit.handle_frames(end_s)
    assert not limit.is_reply_due(end_s + TICK_S)
