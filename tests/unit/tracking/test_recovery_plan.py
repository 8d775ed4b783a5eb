"""Where a recovery begins: at each source's last start, which must connect to its last ack."""

import pytest

from flushtracker.errors import ConfigError, GapError
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan, SourceRecords, Start, plan_recovery
from flushtracker.tracking.job.recovery import log_abandoned


def records(source: str, start: Start | None = None, *, partition: int = 0, last_lsn: int = 9000) -> SourceRecords:
    return SourceRecords(source, partition, last_lsn, start)


def plan(*found: SourceRecords, acks: dict[str, int] | None = None, abandoned: tuple[str, ...] = ()) -> RecoveryPlan:
    return plan_recovery(found, {0: 100, 1: 50}, acks or {}, abandoned, "fragments")


def refusal(*found: SourceRecords, acks: dict[str, int]) -> str:
    with pytest.raises(GapError) as caught:
        plan(*found, acks=acks)
    return str(caught.value)


def test_each_source_begins_at_its_own_last_start() -> None:
    """A partition begins at the first of them; one without a start begins at its current end."""
    starts = plan(records("a", Start(40, 7, 1999)), records("b", Start(60, 5, 2999)), acks={"a": 2000, "b": 5000})
    assert starts.by_partition == {0: PartitionPlan(100, {"a": 40, "b": 60}), 1: PartitionPlan(50, {})}
    assert [part.first for part in starts.by_partition.values()] == [40, 50]


def test_start_must_not_follow_more_than_the_last_ack() -> None:
    """The transaction at the ack is done; an unacknowledged one that the start follows may be lost."""
    assert plan(records("a", Start(40, 7, 2000)), acks={"a": 2000}).by_partition[0].sources == {"a": 40}
    message = refusal(records("a", Start(40, 7, 2001)), acks={"a": 2000})
    assert message == (
        "source a cannot be recovered yet: its last start, in fragments partition 0 at Kafka offset 40, follows 0/7D1, "
        "but its last ack is 0/7D0, so fragments are missing; restart its capture, which resends everything "
        "unconfirmed, then recover (or, if no capture will ever run for it again, start with --recover --abandon a)"
    )


def test_source_without_an_ack_begins_at_its_last_start() -> None:
    """Nothing was confirmed, so capture has resent everything from there on."""
    assert plan(records("a", Start(40, 7, 2001))).by_partition[0].sources == {"a": 40}


def test_the_later_of_two_starts_counts_and_the_other_partition_is_skipped() -> None:
    """Kafka offsets of two partitions cannot be compared, but the records' timestamps can."""
    moved = (records("a", Start(90, 7, 1999)), records("a", Start(3, 8, 1999), partition=1))
    expected = {0: PartitionPlan(100, {"a": 100}), 1: PartitionPlan(50, {"a": 3})}
    assert plan(*moved, acks={"a": 2000}).by_partition == expected
    assert plan(*reversed(moved), acks={"a": 2000}).by_partition == expected


def test_the_later_start_counts_in_a_lower_partition_too() -> None:
    """The timestamp decides, not the partition's number."""
    moved = (records("a", Start(90, 8, 1999)), records("a", Start(3, 7, 1999), partition=1))
    assert plan(*moved, acks={"a": 2000}).by_partition[0].sources == {"a": 90}


def test_nothing_can_be_abandoned_in_an_empty_topic() -> None:
    """The message says that there is nothing."""
    with pytest.raises(ConfigError, match=r"--abandon c: topic fragments has no fragments .* its sources are none$"):
        plan(abandoned=("c",))


def test_source_without_a_start_is_skipped_if_all_of_it_is_acknowledged() -> None:
    """Such as one whose capture was retired: its records will only expire."""
    assert plan(records("a", last_lsn=2000), acks={"a": 2000}).by_partition[0].sources == {"a": 100}


@pytest.mark.parametrize("acks", [{}, {"a": 1999}])
def test_source_without_a_start_is_refused_if_something_is_not_acknowledged(acks: dict[str, int]) -> None:
    """What came before its first record is unknown."""
    message = refusal(records("a", last_lsn=2000), acks=acks)
    assert "topic fragments has fragments of it, but none is marked as a start" in message


def test_abandoned_source_is_skipped_whatever_it_has() -> None:
    """Permanently, up to its current end; a source that is not in the topic is taken for a typing error."""
    starts = plan(records("a", Start(40, 7, 9000)), records("b", Start(60, 5, 0)), acks={"a": 1}, abandoned=("a",))
    assert starts.by_partition[0].sources == {"a": 100, "b": 60}
    with pytest.raises(ConfigError, match=r"--abandon c: topic fragments has no fragments .* its sources are a, b$"):
        plan(records("a"), records("b"), abandoned=("c",))


def test_plans_are_stored_as_json() -> None:
    """The checkpoint keeps the plan for every later start of the job."""
    starts = plan(records("a", Start(40, 7, 1999)), acks={"a": 2000})
    assert RecoveryPlan.from_json(starts.to_json()) == starts
    assert RecoveryPlan.from_json({}) == RecoveryPlan()


def test_what_is_abandoned_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """How much is given up, and whether a capture may still run for it."""
    found = [records("7/1/s", last_lsn=0x300), records("7/2/s", last_lsn=0x400), records("other", last_lsn=0x500)]
    log_abandoned(found, {"7/1/s": 0x200}, ["other", "7/1/s"])
    lost = "what is in between is never acknowledged"
    running = ", and no source has taken its place, so no capture may run for it again"
    assert caplog.messages == [
        f"recovery: abandons source=7/1/s last_ack=0/200 last_lsn=0/300; {lost}",
        f"recovery: abandons source=other last_ack=none last_lsn=0/500; {lost}{running}",
    ]
