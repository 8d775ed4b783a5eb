"""``LoopTrace`` accepts what a run may do, and refuses each decision that the models do not allow."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from flushtracker.events.stream_events import FragmentEvent
from tests.support.loop_trace import Known, Sent
from tests.support.sample_source import SampleSource
from tests.support.wal_history import Event


def known(*events: Event) -> Known:
    told = Known()
    for event in events:
        if isinstance(event, FragmentEvent):
            told.add_fragment(event)
        else:
            told.add_flush(event)
    return told


def refusal(decide: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as refused:
        decide()
    return str(refused.value).splitlines()[0]


def test_every_ack_but_the_greatest_safe_one_is_refused() -> None:
    """The first of two transactions is flushed, and the second in part."""
    source = SampleSource()
    events: list[Event] = [source.transaction(1100, "users"), source.transaction(1200, "users", "orders")]
    flushes: list[Event] = [source.flushed("users", 1200)]
    for ack_lsn in (1100, 1150, 1198, 1199):
        known(*events, *flushes).check(ack_lsn, "batch 0")
    assert refusal(lambda: known(*events, *flushes).check(1200, "batch 0")) == (
        "batch 0: ack 1200 confirms 2 transactions, but 1 are safe"
    )
    assert "confirms 0 transactions, but 1 are safe" in refusal(lambda: known(*events, *flushes).check(1098, "batch 0"))
    all_told = (*events, *flushes, source.flushed("orders", 1200))
    known(*all_told).check(1200, "batch 1")
    assert "all is flushed up to 1200" in refusal(lambda: known(*all_told).check(1250, "batch 1"))


def test_open_transaction_is_below_no_ack() -> None:
    """All of its operations so far are flushed, but its commit was not read."""
    source = SampleSource()
    told: list[Event] = [
        source.transaction(1100),
        source.fragment(1200, 4, {"users": 4}),
        source.flushed("users", 1200, 4),
    ]
    known(*told).check(1199, "batch 0")
    known(*told, source.fragment(1200, 6, {"users": None}, commit=True)).check(1200, "batch 1")


def test_removal_covers_what_was_routed_before_it() -> None:
    source = SampleSource()
    told: list[Event] = [
        source.transaction(1100, "users"),
        source.removed("users", 1100),
        source.transaction(1200, "users"),
    ]
    known(*told).check(1198, "batch 0")
    assert "but 1 are safe" in refusal(lambda: known(*told).check(1200, "batch 0"))


def test_notification_that_goes_back_is_refused() -> None:
    source = SampleSource()
    told: list[Event] = [
        source.transaction(1100, "users"),
        source.flushed("users", 1100),
        source.flushed("users", 1050),
    ]
    assert refusal(lambda: known(*told)) == "the notification of users went back from 0/44C+0 to 0/41A+0"


def test_gap_and_a_resend_that_tells_otherwise_are_refused() -> None:
    """A resend may be cut otherwise."""
    source, sent = SampleSource(), Sent()
    sent.add(source.fragment(1100, 2, {"users": 2}))
    sent.add(replace(source.fragment(1100, 6, {"users": None, "orders": 6}, commit=True), has_begin=False))
    source.restart(1000)
    sent.add(source.fragment(1100, 6, {"users": 2, "orders": 6}, commit=True))
    assert sent.resent == 1
    source.transaction(1200, "users")
    assert "but 0/44C+6 was sent before it" in refusal(lambda: sent.add(source.transaction(1300, "users")))
    source.restart(1000)
    again = source.fragment(1100, 6, {"users": 2}, commit=True)
    assert refusal(lambda: sent.add(again)).startswith("transaction 1100 was sent for")
