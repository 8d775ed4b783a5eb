"""The faults of a topic, by role; a topic with the settings that it is created with has none."""

import json

import pytest

from flushtracker.events.records import Event, Record, fragment_key, record_of
from flushtracker.events.registry_events import ShapeEntry, SourceEntry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.events.topic_rules import ROLES, SNAPSHOT_ROLES, TopicFacts, topic_faults, topic_settings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset

DAY_MS = 86_400_000
LIMIT = 8 << 20
# What a broker reports for a topic that was created without any configuration.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "retention.ms": str(7 * DAY_MS),
    "retention.bytes": "-1",
}


def faults(role: str, *, longest_stall_ms: int = DAY_MS, **changed: str) -> list[str]:
    """The faults of a topic created for the role and then changed; ``_`` stands for the dots of a setting."""
    settings = topic_settings(role, retention_ms=DAY_MS, max_event_bytes=LIMIT)
    settings |= {name.replace("_", "."): value for name, value in changed.items()}
    facts = TopicFacts("t", 1, KAFKA_DEFAULTS | settings)
    return topic_faults(role, facts, retention_ms=longest_stall_ms, max_event_bytes=LIMIT)


@pytest.mark.parametrize("role", [*ROLES, *SNAPSHOT_ROLES])
def test_a_topic_as_it_is_created_has_no_faults(role: str) -> None:
    """The rules and the settings agree."""
    assert faults(role) == []


@pytest.mark.parametrize("role", ["fragments", "shape_changes", "snapshots"])
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact", ""])
def test_streams_read_in_order_are_deleted_only_by_age(role: str, policy: str) -> None:
    """Compaction would keep the last fragment of a source, and remove all others."""
    assert faults(role, cleanup_policy=policy) == [
        f"topic t: cleanup.policy is {policy}, but must be delete: compaction removes records that have not been read"
    ]


@pytest.mark.parametrize("role", ["flushes", "shapes", "snapshots_taken"])
@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact"])
def test_streams_that_count_permanently_are_only_compacted(role: str, policy: str) -> None:
    """Otherwise a shape that last flushed a year ago would be pending forever in a job that starts over."""
    (fault,) = faults(role, cleanup_policy=policy)
    assert fault == (
        f"topic t: cleanup.policy is {policy}, but must be compact: deletion removes the last record of a key, which "
        "must never expire"
    )


@pytest.mark.parametrize("role", ["flushes", "shapes", "snapshots_taken"])
def test_streams_that_count_permanently_have_no_unclean_leader(role: str) -> None:
    """A shape whose entry is lost would be added as new, without what was before. Other streams have a gap instead."""
    (fault,) = faults(role, unclean_leader_election_enable="true")
    assert fault == (
        "topic t: unclean.leader.election.enable is true, but must be false: a replica that lacks the last records of "
        "keys could become the leader, and they would be lost"
    )
    assert faults(role, unclean_leader_election_enable="false") == []
    assert faults("fragments", unclean_leader_election_enable="true") == []


@pytest.mark.parametrize("role", [*ROLES, *SNAPSHOT_ROLES])
def test_records_have_the_time_of_the_broker(role: str) -> None:
    """With a time of the year before, capture's own would be deleted before anybody has read them."""
    (fault,) = faults(role, message_timestamp_type="CreateTime")
    assert fault == (
        "topic t: message.timestamp.type is CreateTime, but must be LogAppendTime: by a producer's wrong clock, "
        "records could be deleted unread, refused, or have a time that ends track"
    )


@pytest.mark.parametrize("role", [*ROLES, *SNAPSHOT_ROLES])
def test_two_of_three_replicas_must_have_a_record(role: str) -> None:
    """With Kafka's default of one, the loss of a single broker may lose what was confirmed."""
    least = [
        topic_settings(role, retention_ms=1, max_event_bytes=1, replication_factor=count).get("min.insync.replicas")
        for count in (1, 2, 3, 4)
    ]
    assert least == [None, None, "2", "2"]


@pytest.mark.parametrize("role", ["fragments", "shapes", "shape_changes", "snapshots"])
def test_the_largest_event_fits(role: str) -> None:
    """Kafka's default limit is a megabyte."""
    (fault,) = faults(role, max_message_bytes="8388607")
    assert fault == (
        "topic t: max.message.bytes is 8388607, but must be at least max_event_bytes, 8388608: the topic would reject "
        "a larger event, which stops the stream. Raise it, or lower max_event_bytes to it"
    )
    assert faults(role, max_message_bytes="8388609") == []


@pytest.mark.parametrize("role", ["fragments", "shape_changes"])
def test_records_are_kept_for_longer_than_the_longest_stall(role: str) -> None:
    """A limit by age must be longer than the stall; a limit by size is a fault."""
    (fault,) = faults(role, longest_stall_ms=DAY_MS + 1)
    assert fault == (
        "topic t: retention.ms is 86400000, but must be at least 86400001, or -1: records would be deleted before a "
        "stalled reader has read them"
    )
    assert faults(role, longest_stall_ms=DAY_MS + 1, retention_ms="-1") == []
    (fault,) = faults(role, retention_bytes="1073741824")
    assert fault == (
        "topic t: retention.bytes is 1073741824, but must be -1: a size limit deletes unread records, however new "
        "they are"
    )


@pytest.mark.parametrize("role", ["flushes", "snapshots_taken"])
def test_notifications_fit(role: str) -> None:
    """Or a writer would fail with the first one, and the slot would be held."""
    (fault,) = faults(role, max_message_bytes="1000")
    assert fault == (
        "topic t: max.message.bytes is 1000, but must be at least 65536: the topic would reject notifications"
    )


@pytest.mark.parametrize("role", ["flushes", "snapshots_taken"])
def test_limits_that_compaction_ignores_are_no_faults(role: str) -> None:
    """A compacted topic does not use retention, and these have small records."""
    assert faults(role, retention_bytes="1073741824", max_message_bytes="1048588") == []


def test_all_faults_are_reported_not_only_the_first() -> None:
    """One look at the topic is then enough."""
    found = topic_faults(
        "fragments", TopicFacts("t", 1, {"cleanup.policy": "compact"}), retention_ms=1, max_event_bytes=1
    )
    assert [fault.split(", but must be ")[0] for fault in found] == [
        "topic t: cleanup.policy is compact",
        "topic t: message.timestamp.type is unknown",
        "topic t: max.message.bytes is unknown",
        "topic t: retention.ms is unknown",
        "topic t: retention.bytes is unknown",
    ]


def test_an_unknown_role_is_a_programming_error() -> None:
    """It is not a fault of a topic."""
    with pytest.raises(ValueError, match=r"^there is no role 'acks'; roles are fragments, flushes, shapes, shape_"):
        topic_faults("acks", TopicFacts("t", 1, {}), retention_ms=1)
    with pytest.raises(ValueError, match=r"^there is no role 'acks'"):
        topic_settings("acks", retention_ms=1, max_event_bytes=1)


def keys_of(source: str, shape_id: str) -> list[tuple[str, str]]:
    """Stream and key of each kind of record of a shape."""
    at = LogOffset(100, 4)
    kinds = [(kind, writer) for kind in ("flushed", "removed") for writer in ("own", "log")]
    events: list[Event] = [FlushNotification(source, kind, shape_id, at, writer) for kind, writer in kinds]
    follows = LogOffset(90, 0)
    events.append(ShapeChangesEvent(source, shape_id, 7, follows, at, start=False, has_begin=True, commit=None))
    events.append(ShapeEntry(source, ShapeDefinition(shape_id, ("public", "t")), 16385, at))
    return [(record.stream, record.key) for record in map(record_of, events)]


def test_no_two_keys_are_the_same() -> None:
    """Real names contain slashes, quotes and commas."""
    names = ["a", "a/b", 'a","b', "b", "", "ä\n", "a,b"]
    keys = [key for source in names for shape_id in names for key in keys_of(source, shape_id)]
    assert len(set(keys)) == len(keys) == len(names) ** 2 * 6
    assert json.loads(dict(keys_of('a","b', "ä\n"))["flushes"]) == ['a","b', "ä\n", "removed", "log"]


def test_a_shapes_changes_and_its_registry_entry_share_a_key() -> None:
    """The entry of the source itself never replaces a shape's."""
    keys = dict(keys_of("7301/1/shapes", "users"))
    assert keys["shape_changes"] == keys["shapes"] == '["7301/1/shapes","users"]'
    assert record_of(SourceEntry("7301/1/shapes", LogOffset(9, 0), "7.1")).key == '["7301/1/shapes",""]'


def test_every_fragment_of_a_source_has_the_sources_key() -> None:
    """So they are all in one partition, in order."""
    event = FragmentEvent("7301/1/shapes", 7, 100, LogOffset(9, 0), LogOffset(100, 4), False, True, None)  # noqa: FBT003  fields
    assert record_of(event) == Record("fragments", "7301/1/shapes", event.to_json())
    assert fragment_key("7301/1/shapes") == "7301/1/shapes"
