"""What is wrong with a topic, said by role; the settings with which one is created have nothing wrong."""

import json

import pytest

from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.records import Event, Record, fragment_key, record_of
from flushtracker.kafka.topic_rules import ROLES, TopicFacts, topic_faults, topic_settings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset

DAY_MS = 86_400_000
# What a broker reports of a topic that was created without a word on its configuration.
KAFKAS_OWN = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "retention.ms": str(7 * DAY_MS),
    "retention.bytes": "-1",
}


def faults(role: str, *, longest_stall_ms: int = DAY_MS, **changed: str) -> list[str]:
    """Those of a topic that was created for the role and then changed; ``_`` stands for the dots of a setting."""
    settings = topic_settings(role, retention_ms=DAY_MS)
    settings |= {name.replace("_", "."): value for name, value in changed.items()}
    return topic_faults(role, TopicFacts("t", 1, KAFKAS_OWN | settings), retention_ms=longest_stall_ms)


@pytest.mark.parametrize("role", ROLES)
def test_a_topic_as_it_is_created_has_no_faults(role: str) -> None:
    """The rules and the settings agree."""
    assert faults(role) == []


@pytest.mark.parametrize("role", ["fragments", "shape_changes"])
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact", ""])
def test_what_is_read_in_order_is_deleted_by_age_alone(role: str, policy: str) -> None:
    """Compaction keeps the last fragment of a source, and eats all others."""
    assert faults(role, cleanup_policy=policy) == [
        f"topic t: cleanup.policy is {policy}, but must be delete: compaction removes records that have not been read"
    ]


@pytest.mark.parametrize("role", ["flushes", "shapes"])
@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact"])
def test_what_counts_for_good_is_compacted_alone(role: str, policy: str) -> None:
    """A shape that flushed its last a year ago would be pending for ever in a job that starts anew."""
    (fault,) = faults(role, cleanup_policy=policy)
    assert fault == (
        f"topic t: cleanup.policy is {policy}, but must be compact: deletion removes the last record of a key, which "
        "counts for good"
    )


@pytest.mark.parametrize("role", ["fragments", "shape_changes"])
def test_the_largest_event_fits(role: str) -> None:
    """Kafka's own limit is a megabyte."""
    (fault,) = faults(role, max_message_bytes="67108863")
    assert fault == (
        "topic t: max.message.bytes is 67108863, but must be at least 67108864: a larger event would be refused, and "
        "the stream stop there"
    )
    assert faults(role, max_message_bytes="67108865") == []


@pytest.mark.parametrize("role", ["fragments", "shape_changes"])
def test_records_are_kept_for_longer_than_the_longest_stall(role: str) -> None:
    """By age, where there is a limit; never by size."""
    (fault,) = faults(role, longest_stall_ms=DAY_MS + 1)
    assert fault == (
        "topic t: retention.ms is 86400000, but must be at least 86400001, or -1: records that a stalled reader has "
        "not read yet would be deleted"
    )
    assert faults(role, longest_stall_ms=DAY_MS + 1, retention_ms="-1") == []
    (fault,) = faults(role, retention_bytes="1073741824")
    assert fault == (
        "topic t: retention.bytes is 1073741824, but must be -1: a limit in bytes deletes records before they are "
        "read, however new they are"
    )


@pytest.mark.parametrize("role", ["flushes", "shapes"])
def test_limits_that_compaction_ignores_are_no_faults(role: str) -> None:
    """A compacted topic has no use for retention, and small records."""
    assert faults(role, retention_bytes="1073741824", max_message_bytes="1048588") == []


def test_all_faults_are_told_not_the_first() -> None:
    """So that one look at the topic is enough."""
    told = topic_faults("fragments", TopicFacts("t", 1, {"cleanup.policy": "compact"}), retention_ms=1)
    assert [fault.split(", but must be ")[0] for fault in told] == [
        "topic t: cleanup.policy is compact",
        "topic t: max.message.bytes is not known",
        "topic t: retention.ms is not known",
        "topic t: retention.bytes is not known",
    ]


def test_an_unknown_role_is_a_mistake_of_the_program() -> None:
    """Not of a topic."""
    with pytest.raises(ValueError, match=r"^there is no role 'acks'; it is one of fragments, flushes, shapes, shape_"):
        topic_faults("acks", TopicFacts("t", 1, {}), retention_ms=1)
    with pytest.raises(ValueError, match=r"^there is no role 'acks'"):
        topic_settings("acks", retention_ms=1)


def keys_of(source: str, shape_id: str) -> list[tuple[str, str]]:
    """Stream and key of a shape's record of each kind."""
    at = LogOffset(100, 4)
    events: list[Event] = [FlushNotification(source, kind, shape_id, at) for kind in ("flushed", "removed")]
    events.append(ShapeChangesEvent(source, shape_id, 7, at, has_begin=True, commit=None))
    events.append(ShapeEntry(source, ShapeDefinition(shape_id, ("public", "t")), 16385, at))
    return [(record.stream, record.key) for record in map(record_of, events)]


def test_no_two_keys_are_the_same() -> None:
    """Whatever the names contain: slashes, quotes and commas are in real ones."""
    names = ["a", "a/b", 'a","b', "b", "", "ä\n", "a,b"]
    keys = [key for source in names for shape_id in names for key in keys_of(source, shape_id)]
    assert len(set(keys)) == len(keys) == len(names) ** 2 * 4
    assert json.loads(dict(keys_of('a","b', "ä\n"))["flushes"]) == ['a","b', "ä\n", "removed"]


def test_a_shapes_changes_and_its_registry_entry_share_a_key() -> None:
    """And the entry of the source itself never replaces a shape's."""
    keys = dict(keys_of("7301/1/shapes", "users"))
    assert keys["shape_changes"] == keys["shapes"] == '["7301/1/shapes","users"]'
    assert record_of(SourceEntry("7301/1/shapes", LogOffset(9, 0))).key == '["7301/1/shapes",""]'


def test_every_fragment_of_a_source_has_the_sources_key() -> None:
    """So all of them are in one partition, in order."""
    event = FragmentEvent("7301/1/shapes", 7, 100, LogOffset(9, 0), LogOffset(100, 4), False, True, None)  # noqa: FBT003  fields
    assert record_of(event) == Record("fragments", "7301/1/shapes", event.to_json())
    assert fragment_key("7301/1/shapes") == "7301/1/shapes"
