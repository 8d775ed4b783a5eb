"""The streams' topics, and the settings that each needs, so that Kafka never removes unread records. No Kafka here.

Fragments, shape changes and the rows of snapshots are read once, in order, and every record counts. Their topics keep
all records for longer than the longest stall to survive, and accept the largest possible record. In the topics of
flushes, of the registry and of the snapshots taken, only the last record of each key counts, but permanently.
Compaction keeps exactly that, and deletion by age would lose it. All records have the broker's time. A producer's clock
may be wrong: its time could be older than the retention, newer than a broker accepts, or one that Spark cannot read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flushtracker.config.streams import FLUSHES, FRAGMENTS, SHAPE_CHANGES, SHAPES, SNAPSHOTS, SNAPSHOTS_TAKEN

MAX_EVENT_BYTES: Final = 64 << 20
"""The maximum and default of ``max_event_bytes``, for rows of many megabytes. librdkafka's defaults can read it."""
FRAME_BYTES: Final = 4_096
"""Allowance in a record of ``max_event_bytes`` for all but its value: the key, the headers and Kafka's framing."""

ROLES: Final = (FRAGMENTS, FLUSHES, SHAPES, SHAPE_CHANGES)
SNAPSHOT_ROLES: Final = (SNAPSHOTS, SNAPSHOTS_TAKEN)
"""Only writers with their own storage need these topics."""
_ORDERED: Final = frozenset({FRAGMENTS, SHAPE_CHANGES, SNAPSHOTS})
_COMPACTED: Final = frozenset({FLUSHES, SHAPES, SNAPSHOTS_TAKEN})
_UNLIMITED: Final = -1
_UNCLEAN: Final = "unclean.leader.election.enable"
_SIZE: Final = "max.message.bytes"
_NOTIFICATION_BYTES: Final = 64 << 10
"""More than a notification has, with its key."""
_TIMES: Final = "message.timestamp.type"
_BROKERS_TIME: Final = "LogAppendTime"
_OF_OTHERS: Final = {"compression.type": "uncompressed"}
"""A record of kilobytes may have gigabytes once it is expanded, so the broker expands it, and checks its size then.

It is not required, because some services do not have this setting.
"""

# Only closed segments are compacted. With Kafka's default of one gigabyte, a reader that starts over would read a
# gigabyte per partition to get a few thousand records.
_COMPACTED_SEGMENT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Topics:
    """The topic name of each stream; all differ. The two for snapshots are both set, or neither."""

    fragments: str
    flushes: str
    shapes: str
    shape_changes: str
    snapshots: str | None = None
    snapshots_taken: str | None = None

    def by_role(self) -> dict[str, str]:
        """Names by role, without unset ones, in the order of the roles."""
        names = {role: getattr(self, role) for role in (*ROLES, *SNAPSHOT_ROLES)}
        return {role: name for role, name in names.items() if name is not None}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as described by its broker; ``config`` is its effective configuration, including defaults.

    A topic that is created again has another ``topic_id``; empty if that was not asked for.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    topic_id: str = ""


def topic_settings(
    role: str, *, retention_ms: int, max_event_bytes: int, replication_factor: int = 1
) -> dict[str, str]:
    """The configuration for a new topic of a role; ``topic_faults`` accepts it.

    With three or more replicas, two must have a record before it is confirmed; Kafka's default is one.

    Raises:
        ValueError: there is no such role.
    """
    common = {_TIMES: _BROKERS_TIME} | ({"min.insync.replicas": "2"} if replication_factor > 2 else {})
    if _is_ordered(role):
        return common | {
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            "retention.bytes": str(_UNLIMITED),
            _SIZE: str(max_event_bytes),
        }
    own = {FLUSHES: _OF_OTHERS, SHAPES: {_SIZE: str(max_event_bytes)}}.get(role, {})
    return common | own | {"cleanup.policy": "compact", "segment.bytes": str(_COMPACTED_SEGMENT_BYTES)}


def topic_faults(role: str, facts: TopicFacts, *, retention_ms: int, max_event_bytes: int | None = None) -> list[str]:
    """Everything wrong with the topic of a role, one sentence each: the setting, its value, the required one, and why.

    ``retention_ms`` is the longest stall to survive, and ``max_event_bytes`` the largest record that the program
    publishes, if any.

    Raises:
        ValueError: there is no such role.
    """
    faults = []
    is_ordered = _is_ordered(role)
    policy, harm = (
        ("delete", "compaction removes records that have not been read")
        if is_ordered
        else ("compact", "deletion removes the last record of a key, which must never expire")
    )
    if facts.config.get("cleanup.policy") != policy:
        faults.append(_fault(facts, "cleanup.policy", policy, harm))
    if facts.config.get(_TIMES) != _BROKERS_TIME:
        why = "by a producer's wrong clock, records could be deleted unread, refused, or have a time that ends track"
        faults.append(_fault(facts, _TIMES, _BROKERS_TIME, why))
    # Records of the ordered streams say what they follow, so a lost one is a gap and is resent.
    if not is_ordered and facts.config.get(_UNCLEAN) == "true":
        why = "a replica that lacks the last records of keys could become the leader, and they would be lost"
        faults.append(_fault(facts, _UNCLEAN, "false", why))
    if role in {FLUSHES, SNAPSHOTS_TAKEN} and not _has_at_least(facts, _SIZE, _NOTIFICATION_BYTES):
        faults.append(_fault(facts, _SIZE, f"at least {_NOTIFICATION_BYTES}", "the topic would reject notifications"))
    is_large = is_ordered or role == SHAPES
    if is_large and max_event_bytes is not None and not _has_at_least(facts, _SIZE, max_event_bytes):
        why = "the topic would reject a larger event, which stops the stream. Raise it, or lower max_event_bytes to it"
        faults.append(_fault(facts, _SIZE, f"at least max_event_bytes, {max_event_bytes}", why))
    if not is_ordered:
        return faults
    if not (_is_unlimited(facts, "retention.ms") or _has_at_least(facts, "retention.ms", retention_ms)):
        why = "records would be deleted before a stalled reader has read them"
        faults.append(_fault(facts, "retention.ms", f"at least {retention_ms}, or {_UNLIMITED}", why))
    if not _is_unlimited(facts, "retention.bytes"):
        why = "a size limit deletes unread records, however new they are"
        faults.append(_fault(facts, "retention.bytes", f"{_UNLIMITED}", why))
    return faults


def deleted_beginning(begins: Mapping[int, int]) -> str | None:
    """Describe the deleted beginning of a compacted topic, given the first offsets; ``None`` if nothing was deleted.

    >>> deleted_beginning({0: 0, 1: 3})
    'begins at Kafka offset 3 in partition 1: what was before was deleted'
    """
    lost = {partition: begin for partition, begin in begins.items() if begin > 0}
    where = ", ".join(f"{begin} in partition {partition}" for partition, begin in sorted(lost.items()))
    return f"begins at Kafka offset {where}: what was before was deleted" if lost else None


def _is_ordered(role: str) -> bool:
    if role in _ORDERED:
        return True
    if role in _COMPACTED:
        return False
    raise ValueError(f"there is no role {role!r}; roles are {', '.join((*ROLES, *SNAPSHOT_ROLES))}")


def _fault(facts: TopicFacts, setting: str, expected: str, why: str) -> str:
    value = facts.config.get(setting, "unknown")
    return f"topic {facts.name}: {setting} is {value}, but must be {expected}: {why}"


def _has_at_least(facts: TopicFacts, setting: str, least: int) -> bool:
    value = facts.config.get(setting, "")
    return value.isdecimal() and int(value) >= least


def _is_unlimited(facts: TopicFacts, setting: str) -> bool:
    return facts.config.get(setting) == str(_UNLIMITED)
