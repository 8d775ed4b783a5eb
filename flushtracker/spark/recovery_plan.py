"""``RecoveryPlan``: the Kafka offset from which each source's fragments are read after a recovery.

A topic may contain a record that cannot be parsed, or a chain of fragments with a gap. When capture restarts, it
resends everything unconfirmed, beginning with a ``start`` fragment. From a source's last start on, its chain is
complete. A recovery skips everything before that start, provided that the start connects to the source's last ack.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flushtracker.errors import ConfigError, GapError
from flushtracker.wal.lsn import format_lsn


class Start(NamedTuple):
    """A fragment with ``start``: its Kafka offset, its record's timestamp, and the LSN that it follows."""

    kafka_offset: int
    timestamp_ms: int
    follows_lsn: int


class SourceRecords(NamedTuple):
    """The records of one source in one partition: their greatest LSN and their last start, if any."""

    source: str
    partition: int
    last_lsn: int
    start: Start | None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition: below the Kafka offset ``end``, a source's records count only from its offset in ``sources``."""

    end: int
    sources: Mapping[str, int]

    @property
    def first(self) -> int:
        """The Kafka offset to read from."""
        return min([self.end, *self.sources.values()])


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The plans of all partitions that held records at the recovery; empty if there was no recovery."""

    by_partition: Mapping[int, PartitionPlan] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {str(p): {"end": s.end, "sources": dict(s.sources)} for p, s in sorted(self.by_partition.items())}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RecoveryPlan":
        """Read the output of :meth:`to_json`; raises ``ValueError`` for anything else."""
        plans = {}
        for partition, plan in fields.items():
            end, sources = plan["end"], plan["sources"]
            if not all(type(kafka_offset) is int and kafka_offset >= 0 for kafka_offset in (end, *sources.values())):
                raise ValueError(f"partition {partition} has a Kafka offset that is not an integer from 0 on")
            plans[int(partition)] = PartitionPlan(end, sources)
        return cls(plans)


def plan_recovery(
    records: Iterable[SourceRecords],
    ends: Mapping[int, int],
    last_acks: Mapping[str, int],
    abandoned: Collection[str],
    topic: str,
) -> RecoveryPlan:
    """Find where to start reading each source's fragments, given the topic's records and the last acks.

    ``ends`` maps each partition to the Kafka offset after its last record. All records of an ``abandoned`` source are
    skipped.

    Raises:
        GapError: a source's last start does not connect to its last ack.
        ConfigError: an abandoned source is not in the topic.
    """
    by_source: dict[str, list[SourceRecords]] = defaultdict(list)
    for record in records:
        by_source[record.source].append(record)
    if unknown := sorted(set(abandoned) - by_source.keys()):
        raise ConfigError(
            f"--abandon {unknown[0]}: topic {topic} has no fragments of that source; its sources are "
            f"{', '.join(sorted(by_source)) or 'none'}"
        )
    starts: dict[int, dict[str, int]] = defaultdict(dict)
    for source, parts in sorted(by_source.items()):
        last_start = None if source in abandoned else _last_start(parts, last_acks.get(source), topic)
        for part in parts:
            has_last_start = last_start is not None and part.start == last_start[1] and part.partition == last_start[0]
            starts[part.partition][source] = (
                part.start.kafka_offset if has_last_start and part.start else ends[part.partition]
            )
    return RecoveryPlan({p: PartitionPlan(end, starts[p]) for p, end in ends.items()})


def _last_start(parts: list[SourceRecords], last_ack: int | None, topic: str) -> tuple[int, Start] | None:
    """The partition and position of a source's last start; ``None`` if all its fragments are acknowledged."""
    source = parts[0].source
    found = [(part.partition, part.start) for part in parts if part.start is not None]
    if found:
        partition, start = max(found, key=lambda item: (item[1].timestamp_ms, item[1].kafka_offset))
        if last_ack is None or start.follows_lsn <= last_ack:
            return partition, start
        fact = (
            f"its last start, in {topic} partition {partition} at Kafka offset {start.kafka_offset}, follows "
            f"{format_lsn(start.follows_lsn)}, but its last ack is {format_lsn(last_ack)}, so fragments are missing"
        )
    elif last_ack is not None and max(part.last_lsn for part in parts) <= last_ack:
        return None
    else:
        fact = f"topic {topic} has fragments of it, but none is marked as a start"
    raise GapError(
        f"source {source} cannot be recovered yet: {fact}; restart its capture, which resends everything unconfirmed, "
        f"then recover (or, if no capture will ever run for it again, start with --recover --abandon {source})"
    )
