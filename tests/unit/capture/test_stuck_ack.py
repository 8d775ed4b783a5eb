"""The rule for warnings about an ack that does not move while capture publishes on."""

from flushtracker.capture.wire.stuck_ack import FIRST_S, LEAST_BYTES, StuckAck

MUCH = LEAST_BYTES + 1


def warned_at(stuck: StuckAck, ack_lsn: int, published_lsn: int, first_s: int, last_s: int) -> list[int]:
    """The seconds at which it warns, if it is checked each second."""
    checks = {now_s: stuck.check(ack_lsn, published_lsn, now_s) for now_s in range(first_s, last_s + 1)}
    return [now_s for now_s, notice in checks.items() if notice is not None and not notice.is_over]


def test_a_stuck_ack_is_warned_about_at_doubling_intervals() -> None:
    """After one minute, two, four, …, and at least every hour: the age doubles each time."""
    assert warned_at(StuckAck(), 0, MUCH, 0, 20_000) == [60, 120, 240, 480, 960, 1920, 3840, 7440, 11040, 14640, 18240]


def test_nothing_is_said_of_a_segment_of_wal_or_less() -> None:
    """However old: a server with little traffic is no danger."""
    assert warned_at(StuckAck(), 0, LEAST_BYTES, 0, 10_000) == []
    stuck = StuckAck()
    assert stuck.check(0, LEAST_BYTES, 0) is None
    assert stuck.check(0, MUCH, 10_000) is not None


def test_a_burst_after_idle_hours_is_no_stuck_ack() -> None:
    """The ack did not move because there was nothing to acknowledge, so its minute begins with the burst."""
    stuck = StuckAck()
    assert warned_at(stuck, 7, 7, 0, 7200) == []
    assert warned_at(stuck, 7, 7 + MUCH, 7201, 7300) == [7260]


def test_a_slow_ack_that_moves_is_no_stuck_ack() -> None:
    """However far behind it is."""
    stuck = StuckAck()
    assert all(stuck.check(second // 59, 100 * MUCH, second) is None for second in range(1_000))


def test_that_the_ack_moves_again_is_said_once_and_the_next_minute_begins() -> None:
    """With how long it had not moved."""
    stuck = StuckAck()
    assert warned_at(stuck, 0, MUCH, 0, 100) == [60]
    notice = stuck.check(5, 2 * MUCH, 100.5)
    assert notice is not None
    assert (notice.is_over, notice.ack_lsn, notice.seconds, notice.behind_bytes) == (True, 5, 100.5, 2 * MUCH - 5)
    assert stuck.check(6, 2 * MUCH, 101) is None
    assert warned_at(stuck, 6, 2 * MUCH, 102, 200) == [101 + int(FIRST_S)]


def test_an_ack_past_what_this_process_has_published_is_not_stuck() -> None:
    """After a restart, until what is resent is published again."""
    assert warned_at(StuckAck(), 10 * MUCH, MUCH, 0, 1_000) == []


def test_a_reconnect_neither_repeats_a_warning_nor_ends_it() -> None:
    """Until the acks are read again, a connection knows only what the slot has confirmed."""
    stuck = StuckAck()
    assert warned_at(stuck, 100, 2 * MUCH, 0, 60) == [60]
    assert [stuck.check(ack_lsn, 2 * MUCH, 61 + ack_lsn / 100) for ack_lsn in (40, 100)] == [None, None]
    assert warned_at(stuck, 100, 2 * MUCH, 70, 130) == [120]
