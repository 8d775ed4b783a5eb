"""What each stream's topic must be like, so that Kafka never takes away what has not been read. Pure: no Kafka here.

Fragments and shape changes are read once, in order, and every record counts: their topics keep all records for longer
than the longest stall that is to be survived, and take the largest record that there can be. Of flushes and of the
registry of shapes, the last record of each key is all that counts, and it counts for good: compaction keeps exactly
that, and deletion by age would lose it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MAX_MESSAGE_BYTES: Final = 64 << 20
"""The largest event: a fragment that names 100,000 shapes, or one that brings a shape rows of many megabytes."""

ROLES: Final = ("fragments", "flushes", "shapes", "shape_changes")
_ORDERED: Final = frozenset({"fragments", "shape_changes"})
_COMPACTED: Final = frozenset({"flushes", "shapes"})
_UNLIMITED: Final = -1

# Only closed segments are compacted. With Kafka's own one gigabyte, a reader that starts anew would read a gigabyte of
# each partition to learn what a few thousand records say.
_COMPACTED_SEGMENT_BYTES: Final = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as its broker describes it; ``config`` is its effective configuration, defaults included."""

    name: str
    partitions: int
    config: Mapping[str, str]


def topic_settings(role: str, *, retention_ms: int) -> dict[str, str]:
    """The configuration with which the topic of a role is created; it has no faults.

    Raises:
        ValueError: there is no such role.
    """
    if _is_ordered(role):
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            "retention.bytes": str(_UNLIMITED),
            "max.message.bytes": str(MAX_MESSAGE_BYTES),
        }
    return {"cleanup.policy": "compact", "segment.bytes": str(_COMPACTED_SEGMENT_BYTES)}


def topic_faults(role: str, facts: TopicFacts, *, retention_ms: int) -> list[str]:
    """All that is wrong with the topic of a role, one sentence each: the setting, what it is, what it must be, and why.

    ``retention_ms`` is the longest stall that is to be survived.

    Raises:
        ValueError: there is no such role.
    """
    faults = []
    is_ordered = _is_ordered(role)
    policy, harm = (
        ("delete", "compaction removes records that have not been read")
        if is_ordered
        else ("compact", "deletion removes the last record of a key, which counts for good")
    )
    if facts.config.get("cleanup.policy") != policy:
        faults.append(_fault(facts, "cleanup.policy", policy, harm))
    if not is_ordered:
        return faults
    if not _has_at_least(facts, "max.message.bytes", MAX_MESSAGE_BYTES):
        why = "a larger event would be refused, and the stream stop there"
        faults.append(_fault(facts, "max.message.bytes", f"at least {MAX_MESSAGE_BYTES}", why))
    if not (_is_unlimited(facts, "retention.ms") or _has_at_least(facts, "retention.ms", retention_ms)):
        why = "records that a stalled reader has not read yet would be deleted"
        faults.append(_fault(facts, "retention.ms", f"at least {retention_ms}, or {_UNLIMITED}", why))
    if not _is_unlimited(facts, "retention.bytes"):
        why = "a limit in bytes deletes records before they are read, however new they are"
        faults.append(_fault(facts, "retention.bytes", f"{_UNLIMITED}", why))
    return faults


def _is_ordered(role: str) -> bool:
    if role in _ORDERED:
        return True
    if role in _COMPACTED:
        return False
    raise ValueError(f"there is no role {role!r}; it is one of {', '.join(ROLES)}")


def _fault(facts: TopicFacts, setting: str, expected: str, why: str) -> str:
    value = facts.config.get(setting, "not known")
    return f"topic {facts.name}: {setting} is {value}, but must be {expected}: {why}"


def _has_at_least(facts: TopicFacts, setting: str, least: int) -> bool:
    value = facts.config.get(setting, "")
    return value.isdecimal() and int(value) >= least


def _is_unlimited(facts: TopicFacts, setting: str) -> bool:
    return facts.config.get(setting) == str(_UNLIMITED)
