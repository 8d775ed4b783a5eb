"""``RecoveryPlan``: from where on each source's fragments count after a recovery, and how that is found.

A topic may hold what must not be read again: a record that cannot be read, or a chain of fragments with a gap. When
capture starts anew it sends everything unconfirmed again, behind a fragment with ``start``. From the last such fragment
on the source's chain is whole, and what was acknowledged before it connects to it; what came earlier is skipped.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flushtracker.errors import ConfigError, GapError
from flushtracker.wal.lsn import format_lsn


class Start(NamedTuple):
    """A fragment with ``start``: where it is in its partition, when it came, and the LSN that it follows."""

    kafka_offset: int
    timestamp_ms: int
    follows_lsn: int


class SourceRecords(NamedTuple):
    """What one partition holds of one source: its greatest LSN, and its last start if there is one."""

    source: str
    partition: int
    last_lsn: int
    start: Start | None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition: below the Kafka offset ``end`` a record counts if it is at or past its source's in ``sources``."""

    end: int
    sources: Mapping[str, int]

    @property
    def first(self) -> int:
        """The Kafka offset to begin with."""
        return min([self.end, *self.sources.values()])


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The starts of all partitions that held something at the recovery; empty where none was needed."""

    by_partition: Mapping[int, PartitionPlan] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As an object that JSON can hold."""
        return {str(p): {"end": s.end, "sources": dict(s.sources)} for p, s in sorted(self.by_partition.items())}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RecoveryPlan":
        """Read what :meth:`to_json` gave."""
        return cls({int(p): PartitionPlan(starts["end"], starts["sources"]) for p, starts in fields.items()})


def plan_recovery(
    records: Iterable[SourceRecords],
    ends: Mapping[int, int],
    last_acks: Mapping[str, int],
    abandoned: Collection[str],
    topic: str,
) -> RecoveryPlan:
    """From where on each source's fragments count, given what the topic holds and what was acknowledged last.

    ``ends`` gives the Kafka offset after each partition's last record. Nothing of an ``abandoned`` source counts.

    Raises:
        GapError: a source's last start does not connect to its last ack.
        ConfigError: an abandoned source is not in the topic.
    """
    by_source: dict[str, list[SourceRecords]] = defaultdict(list)
    for record in records:
        by_source[record.source].append(record)
    if unknown := sorted(set(abandoned) - by_source.keys()):
        raise ConfigError(
            f"--abandon {unknown[0]}: topic {topic} has no fragment of that source; it has those of "
            f"{', '.join(sorted(by_source)) or 'none'}"
        )
    starts: dict[int, dict[str, int]] = defaultdict(dict)
    for source, parts in sorted(by_source.items()):
        last_start = None if source in abandoned else _last_start(parts, last_acks.get(source), topic)
        for part in parts:
            is_there = last_start is not None and part.start == last_start[1] and part.partition == last_start[0]
            starts[part.partition][source] = (
                part.start.kafka_offset if is_there and part.start else ends[part.partition]
            )
    return RecoveryPlan({p: PartitionPlan(end, starts[p]) for p, end in ends.items()})


def _last_start(parts: list[SourceRecords], last_ack: int | None, topic: str) -> tuple[int, Start] | None:
    """The partition and place of a source's last start; ``None`` where all that the topic has is acknowledged."""
    source = parts[0].source
    found = [(part.partition, part.start) for part in parts if part.start is not None]
    if found:
        partition, start = max(found, key=lambda item: (item[1].timestamp_ms, item[1].kafka_offset))
        if last_ack is None or start.follows_lsn <= last_ack:
            return partition, start
        fact = (
            f"its last start, in {topic} partition {partition} at Kafka offset {start.kafka_offset}, follows "
            f"{format_lsn(start.follows_lsn)}, but its last ack is {format_lsn(last_ack)}; something is missing"
        )
    elif last_ack is not None and max(part.last_lsn for part in parts) <= last_ack:
        return None
    else:
        fact = f"topic {topic} has fragments of it, but none that is marked as a start"
    raise GapError(
        f"source {source} cannot be recovered yet: {fact}; restart its capture, which sends everything unconfirmed "
        f"again, then recover (or, if no capture will ever run for it again, recover with --abandon {source})"
    )
