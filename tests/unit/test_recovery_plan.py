"""Where a recovery begins: the last start of each source that connects to its last ack."""

import pytest

from flushtracker.errors import ConfigError, GapError
from flushtracker.tracking.recovery_plan import PartitionPlan, RecoveryPlan, SourceRecords, Start, plan_recovery


def records(source: str, start: Start | None = None, *, partition: int = 0, last_lsn: int = 9000) -> SourceRecords:
    return SourceRecords(source, partition, last_lsn, start)


def plan(*found: SourceRecords, acks: dict[str, int] | None = None, abandoned: tuple[str, ...] = ()) -> RecoveryPlan:
    return plan_recovery(found, {0: 100, 1: 50}, acks or {}, abandoned, "fragments")


def refusal(*found: SourceRecords, acks: dict[str, int]) -> str:
    with pytest.raises(GapError) as caught:
        plan(*found, acks=acks)
    return str(caught.value)


def test_each_source_begins_at_its_own_last_start() -> None:
    """The partition begins at the first of them; what nobody starts at begins where it ends now."""
    starts = plan(records("a", Start(40, 7, 1999)), records("b", Start(60, 5, 2999)), acks={"a": 2000, "b": 5000})
    assert starts.by_partition == {0: PartitionPlan(100, {"a": 40, "b": 60}), 1: PartitionPlan(50, {})}
    assert [part.first for part in starts.by_partition.values()] == [40, 50]


def test_start_that_follows_the_last_ack_itself_connects_and_the_one_after_it_does_not() -> None:
    """A transaction whose commit is the ack is done; one that the start follows and nobody acknowledged may be lost."""
    assert plan(records("a", Start(40, 7, 2000)), acks={"a": 2000}).by_partition[0].sources == {"a": 40}
    message = refusal(records("a", Start(40, 7, 2001)), acks={"a": 2000})
    assert message == (
        "source a cannot be recovered yet: its last start, in fragments partition 0 at Kafka offset 40, follows 0/7D1, "
        "but its last ack is 0/7D0; something is missing; restart its capture, which sends everything unconfirmed "
        "again, then recover (or, if no capture will ever run for it again, recover with --abandon a)"
    )


def test_source_without_an_ack_begins_at_its_last_start() -> None:
    """Nothing was confirmed, so capture has sent everything since then again."""
    assert plan(records("a", Start(40, 7, 2001))).by_partition[0].sources == {"a": 40}


def test_of_starts_in_two_partitions_the_later_counts_and_the_other_partition_is_skipped() -> None:
    """Kafka offsets of two partitions say nothing about their order; the records' times do."""
    moved = (records("a", Start(90, 7, 1999)), records("a", Start(3, 8, 1999), partition=1))
    expected = {0: PartitionPlan(100, {"a": 100}), 1: PartitionPlan(50, {"a": 3})}
    assert plan(*moved, acks={"a": 2000}).by_partition == expected
    assert plan(*reversed(moved), acks={"a": 2000}).by_partition == expected


def test_source_without_a_start_is_skipped_where_all_of_it_is_acknowledged() -> None:
    """Such as one whose capture was retired: its records are only waiting to expire."""
    assert plan(records("a", last_lsn=2000), acks={"a": 2000}).by_partition[0].sources == {"a": 100}


@pytest.mark.parametrize("acks", [{}, {"a": 1999}])
def test_source_without_a_start_is_refused_where_something_is_not_acknowledged(acks: dict[str, int]) -> None:
    """What came before its first record is unknown."""
    message = refusal(records("a", last_lsn=2000), acks=acks)
    assert "topic fragments has fragments of it, but none that is marked as a start" in message


def test_abandoned_source_is_skipped_whatever_it_has() -> None:
    """For good, up to what is there now; one that is not there is a typing error."""
    starts = plan(records("a", Start(40, 7, 9000)), records("b", Start(60, 5, 0)), acks={"a": 1}, abandoned=("a",))
    assert starts.by_partition[0].sources == {"a": 100, "b": 60}
    with pytest.raises(ConfigError, match=r"--abandon c: topic fragments has no fragment .* it has those of a, b$"):
        plan(records("a"), records("b"), abandoned=("c",))


def test_starts_are_kept_as_json() -> None:
    """In the checkpoint, for every start until the records have passed."""
    starts = plan(records("a", Start(40, 7, 1999)), acks={"a": 2000})
    assert RecoveryPlan.from_json(starts.to_json()) == starts
    assert RecoveryPlan.from_json({}) == RecoveryPlan()
