"""The streams of a simulation: topics that keep what is published, and the sources that publish to them.

A source is one WAL with its slot, its capture process and its shapes' writers. Capture may stop anywhere and resend
everything unconfirmed in other cuts; it may also lose or garble a record, which is noted as damage.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from flushtracker.events.records import flush_keys
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.spark.recovery_plan import RecoveryPlan, SourceRecords, Start
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from tests.support.random_wal import items_after, random_run, random_stray_flush
from tests.support.simulated_job import DeletedFlush, Record, Unreadable
from tests.support.wal_history import History, Keepalive

GARBLED = '{"v":1,"source":'


class FragmentRecord(NamedTuple):
    """A record of the topic of fragments; its Kafka offset is its place in the partition."""

    timestamp_ms: int
    event: FragmentEvent | Unreadable


@dataclass(slots=True)
class Streams:
    """The partitions of the topic of fragments, and the topic of flushes.

    Of a flush that was deleted, ``None`` stays: the others keep their Kafka offsets.
    """

    fragments: list[list[FragmentRecord]]
    flushes: list[FlushNotification | Unreadable | DeletedFlush | None] = field(default_factory=list)
    published: int = 0

    def publish(self, partition: int, event: FragmentEvent | Unreadable) -> None:
        self.published += 1
        self.fragments[partition].append(FragmentRecord(self.published, event))

    @property
    def ends(self) -> tuple[int, ...]:
        """The ends of all partitions, that of the flushes last."""
        return (*map(len, self.fragments), len(self.flushes))

    def read(self, first: Sequence[int], ends: Sequence[int], starts: RecoveryPlan) -> Iterator[Record]:
        """The records between two positions that count, as ``kafka_streams.counts`` selects them."""
        for partition, records in enumerate(self.fragments):
            plan = starts.by_partition.get(partition)
            for offset in range(first[partition], ends[partition]):
                event = records[offset].event
                if plan is not None and offset < plan.end:
                    source = None if isinstance(event, Unreadable) else event.source
                    if source is None or offset < plan.sources.get(source, plan.end):
                        continue
                yield event
        yield from filter(None, self.flushes[first[-1] : ends[-1]])

    def source_records(self) -> list[SourceRecords]:
        """What a recovery reads, as ``recovery.read_recovery_plan`` summarizes the topic."""
        found: dict[tuple[str, int], SourceRecords] = {}
        for partition, records in enumerate(self.fragments):
            for offset, (timestamp_ms, event) in enumerate(records):
                if isinstance(event, Unreadable):
                    continue
                key = event.source, partition
                last_lsn, start = found[key][2:] if key in found else (-1, None)
                if event.start:
                    start = Start(offset, timestamp_ms, event.follows.tx_offset)
                found[key] = SourceRecords(*key, max(last_lsn, event.lsn), start)
        return list(found.values())

    def delete_flushes(self, history: History, shape_ids: Set[str]) -> None:
        """Delete what these shapes flushed up to their removals, read or not, as tombstones do in the end.

        A job may still read the tombstones.
        """
        for number, flush in enumerate(self.flushes):
            if not isinstance(flush, FlushNotification) or flush.source != history.source:
                continue
            if flush.shape_id in shape_ids and history.is_removed(flush.shape_id, flush.offset):
                self.flushes[number] = None
        for shape_id in sorted(shape_ids):
            self.flushes += map(DeletedFlush, flush_keys(history.source, shape_id, LOG_WRITER))

    def compact(self, above: Mapping[str, int]) -> None:
        """Keep the last flush for each source, shape, type and writer, as compaction of the topic does in the end.

        Flushes of a source that are not ``above`` its ack are lost.
        """
        last = {
            (flush.source, flush.shape_id, flush.type, flush.writer): flush
            for flush in self.flushes
            if isinstance(flush, FlushNotification)
            if flush.type == "removed" or flush.offset.tx_offset > above.get(flush.source, -1)
        }
        self.flushes = list(last.values())


@dataclass(slots=True)
class SimulatedSource:
    """One source. ``damages`` are the Kafka offsets at which its chain may break.

    Of ``forgotten`` shapes, nobody publishes the removal any more, nor flushes of what that completes.
    """

    history: History
    partition: int
    streams: Streams
    confirmed_lsn: int = -1
    run: list[FragmentEvent] = field(default_factory=list)
    sent: int = 0
    reached: LogOffset = field(default_factory=LogOffset.before_all)
    furthest: dict[tuple[str, str], FlushNotification] = field(default_factory=dict)
    """What each shape's writers hold."""
    damages: list[int] = field(default_factory=list)
    forgotten: set[str] = field(default_factory=set)
    _last: FragmentEvent | None = None

    def __post_init__(self) -> None:
        self.confirmed_lsn = self.history.items[0].lsn - 20
        self.restart_capture(Random(0), None)  # noqa: S311  nothing is random before the first ack

    @property
    def name(self) -> str:
        return self.history.source

    @property
    def closing_lsn(self) -> int:
        """Above everything in the WAL."""
        return self.history.items[-1].lsn + 100

    def restart_capture(self, rng: Random, acked: int | None) -> None:
        """Begin a run after the confirmed LSN, which a status update may have moved up to the last ack."""
        if acked is not None and acked > self.confirmed_lsn and rng.random() < 0.8:
            self.confirmed_lsn = acked
        first = items_after(self.history, self.confirmed_lsn)
        self.run = random_run(rng, self.history, [], first, self.confirmed_lsn)
        self.sent = 0
        self._last = None

    def publish(self, count: int) -> None:
        """Publish the next fragments of the run."""
        for fragment in self.run[self.sent : self.sent + count]:
            self._publish(fragment)

    def publish_twice(self) -> None:
        """Publish the last fragment again, as a producer does whose acknowledgement was lost."""
        if self._last is not None:
            self.streams.publish(self.partition, self._last)

    def damage(self, *, garbled: bool) -> None:
        """Lose the next fragment, or publish garbled text in its place."""
        # Where one producer sends bare commits and another does not, a lost one cannot be told from an offset alone.
        if self.history.bare_commits or self.sent >= len(self.run):
            return
        self.damages.append(len(self.streams.fragments[self.partition]))
        if garbled:
            self.streams.publish(self.partition, Unreadable(GARBLED, is_fragment=True))
        self.sent += 1
        self._last = None

    def close(self) -> None:
        """Publish the rest of the run, and the keepalive of an idle server."""
        self.publish(len(self.run))
        if self.confirmed_lsn >= self.closing_lsn or (self.run and self.run[-1].lsn == self.closing_lsn):
            return
        follows = self.run[-1].last_log_offset if self.run else LogOffset(self.confirmed_lsn, 0)
        self.run.append(Keepalive(self.closing_lsn).fragment(follows, start=not self.run, source=self.name))
        self.publish(1)

    def end_below(self, offset: int) -> int:
        """The Kafka offset after the source's last record below ``offset``: its chain cannot break before that."""
        for number in range(offset, 0, -1):
            event = self.streams.fragments[self.partition][number - 1].event
            if isinstance(event, FragmentEvent) and event.source == self.name:
                return number
        return 0

    def flush(self, rng: Random) -> None:
        """A writer reports a flush of what it was sent or, rarely, of what it will be sent; or its shape is removed.

        Or another program reports a flush that is not its own to report.
        """
        written = self.history.written_offsets
        shapes = sorted(written.keys() | self.history.removals.keys())
        if not shapes:
            return
        shape_id = rng.choice(shapes)
        if shape_id in self.history.removals.keys() - self.forgotten and rng.random() < 0.3:
            self.streams.flushes.append(self.history.removal(shape_id))
            return
        is_ahead = rng.random() < 0.1
        possible = [offset for offset in written.get(shape_id, []) if is_ahead or offset <= self.reached]
        offsets = [offset for offset in possible if not self._is_forgotten(shape_id, offset)]
        if offsets:
            flush = self.history.flush(shape_id, rng.choice([max(offsets), rng.choice(offsets)]))
            key = shape_id, flush.writer
            if key not in self.furthest or self.furthest[key].offset < flush.offset:
                self.furthest[key] = flush
            self.streams.flushes.append(flush)
        if rng.random() < 0.3:
            self.streams.flushes.append(random_stray_flush(rng, self.history, shape_id))

    def repeat_flushes(self, above: int = -1) -> None:
        """Each writer reports again what it holds, if that is ``above`` an ack."""
        for flush in self.furthest.values():
            if flush.offset.tx_offset > above and not self._is_forgotten(flush.shape_id, flush.offset):
                self.streams.flushes.append(flush)

    def forget_removed(self, acked: int) -> bool:
        """Capture deletes the flushes of removed shapes whose removals are acknowledged; whether there were any."""
        removals = self.history.removals
        gone = {shape_id for shape_id, offset in removals.items() if offset.tx_offset <= acked} - self.forgotten
        self.streams.delete_flushes(self.history, gone)
        self.forgotten |= gone
        return bool(gone)

    def flush_all(self) -> None:
        """Each writer flushes everything that it is ever sent."""
        last = self.history.last_flushes()
        self.streams.flushes += [each for each in last if not self._is_forgotten(each.shape_id, each.offset)]

    def _is_forgotten(self, shape_id: str, offset: LogOffset) -> bool:
        return shape_id in self.forgotten and self.history.is_removed(shape_id, offset)

    def _publish(self, fragment: FragmentEvent) -> None:
        self.streams.publish(self.partition, fragment)
        self.reached = max(self.reached, LogOffset(fragment.lsn, fragment.last_log_offset.op_offset + 1))
        self.sent += 1
        self._last = fragment
