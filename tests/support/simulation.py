"""The whole tracker as one deterministic machine: streams, shape groups, driver, ack table and crashes, from a seed.

A scenario is a list of actions, each with a seed of its own, so that any of them can be left out and the rest still
mean the same. Sources publish, writers flush, the job runs batches; capture, drivers and checkpoints are killed,
replaced, fenced and lost at every step. Production code does each step (:mod:`tests.support.simulated_job`);
``Simulation`` decides what happens next, as Spark and an operator would. After each batch:

- *Safety* and *exactness* of each source's ack (:mod:`tests.support.watched_source`). Safety is checked, too, if the
  batch failed or its driver was killed.
- *Liveness.* Once everything is sent and flushed, the ack is the last commit or keepalive, and nothing is pending.
- *Space.* Once flushes are deleted, too, nothing is kept of any shape.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from flushtracker.errors import DecodeError, FencedError, GapError, SinkError
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.spark.recovery_plan import RecoveryPlan, plan_recovery
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import CHAIN
from tests.support.ack_rows import AckRows, ObservedTable, StoredAcks
from tests.support.group_view import shapes_of
from tests.support.scenario import Scenario
from tests.support.simulated_job import (
    DEFAULT_MAX_PENDING,
    Checkpoint,
    DeletedFlush,
    KilledError,
    Record,
    SimulatedJob,
    Unreadable,
)
from tests.support.simulated_streams import GARBLED, Streams
from tests.support.watched_source import WatchedSource


@dataclass(slots=True)
class CheckpointFolder:
    """Where its batches begin and end in the streams, and the state after each committed one."""

    first: tuple[int, ...]
    starts: RecoveryPlan = field(default_factory=RecoveryPlan)
    plans: dict[int, tuple[int, ...]] = field(default_factory=dict)
    commits: list[Checkpoint] = field(default_factory=lambda: [Checkpoint()])

    @property
    def last(self) -> Checkpoint:
        return self.commits[-1]

    def begin_of(self, batch_id: int) -> tuple[int, ...]:
        return self.plans[batch_id - 1] if batch_id else self.first

    def restored(self, commit: int) -> "CheckpointFolder":
        """A copy that was made after a commit: later batches are planned anew."""
        commits = self.commits[: commit + 1]
        plans = {batch_id: ends for batch_id, ends in self.plans.items() if batch_id <= commits[-1].batch_id}
        return CheckpointFolder(self.first, self.starts, plans, commits)


_MAX_RECOVERIES: Final = 5


class Simulation:
    """One scenario in progress. The acks are in memory unless a ``table`` is given."""

    def __init__(self, scenario: Scenario, table: StoredAcks | None = None) -> None:
        self.scenario = scenario
        self.events = self.batches = self.acks = 0
        self.streams = Streams([[] for _ in range(1 if scenario.seed % 2 else 2)])
        self.table: StoredAcks = AckRows() if table is None else table
        self.sources = [WatchedSource.of(scenario, number, self.streams) for number in range(scenario.sources)]
        self.folder = CheckpointFolder(tuple(0 for _ in self.streams.ends))
        self.dead_letters = 0
        self._interrupt: Callable[[], None] | None = None
        self._calls_left = 0
        self.job = self._start_driver()

    def run(self) -> None:
        """Run all actions, and then to the end without further faults; raises what production code or a check does."""
        for action in self.scenario.actions:
            getattr(self, action.name)(Random(action.seed))  # noqa: S311
        self._finish()
        self.acks = len(self.table.rows)

    # Streams

    def publish(self, rng: Random) -> None:
        rng.choice(self.sources).source.publish(rng.randint(1, 4))

    def flush(self, rng: Random) -> None:
        source = rng.choice(self.sources).source
        for _ in range(rng.randint(1, 3)):
            source.flush(rng)

    def repeat_flushes(self, rng: Random) -> None:
        rng.choice(self.sources).source.repeat_flushes()

    def publish_twice(self, rng: Random) -> None:
        rng.choice(self.sources).source.publish_twice()

    def restart_capture(self, rng: Random) -> None:
        watched = rng.choice(self.sources)
        watched.source.restart_capture(rng, self.table.last_acks.get(watched.name))

    def forget_removed(self, rng: Random) -> None:
        """Capture deletes the flushes of shapes whose removals are acknowledged, and Kafka's compaction is through.

        The job need not have read them: it may be down, or continue from a checkpoint that is older than the ack.
        """
        watched = rng.choice(self.sources)
        if watched.source.forget_removed(self.table.last_acks.get(watched.name, -1)):
            watched.has_forgotten = True

    def lose_fragment(self, rng: Random) -> None:
        rng.choice(self.sources).source.damage(garbled=False)

    def garble_fragment(self, rng: Random) -> None:
        rng.choice(self.sources).source.damage(garbled=True)

    def garble_flush(self, _rng: Random) -> None:
        self.streams.flushes.append(Unreadable(GARBLED, is_fragment=False))

    # Drivers and checkpoints

    def restart_driver(self, _rng: Random) -> None:
        rows = len(self.table.rows)
        self.job = self._start_driver()
        assert len(self.table.rows) == rows, "a batch was committed without its ack"

    def replace_driver(self, rng: Random) -> None:
        """Another driver starts while this one is in a batch, and fences it."""
        self._batch(rng, self._take_over, rng.randrange(8))

    def restore_old_checkpoint(self, rng: Random) -> None:
        """An operator restores a copy of the checkpoint."""
        self._use(self.folder.restored(rng.randrange(len(self.folder.commits))))

    def rebuild_from_streams(self, rng: Random) -> None:
        """The checkpoint is lost: a new one reads what the topics have retained."""
        self._lose_flushes(rng)
        first = []
        for records in self.streams.fragments:
            begin = 0
            while begin < len(records) and self._may_expire(records[begin].event) and rng.random() < 0.7:
                begin += 1
            first.append(begin)
        for watched in self.sources:
            watched.begin = watched.source.end_below(first[watched.source.partition])
        self._use(CheckpointFolder((*first, 0)))

    def recover(self, rng: Random) -> None:
        """``--recover``: a new checkpoint begins at each source's last start; without one, capture must restart."""
        for _ in range(_MAX_RECOVERIES):
            try:
                plan = plan_recovery(
                    self.streams.source_records(),
                    {number: len(records) for number, records in enumerate(self.streams.fragments) if records},
                    self.table.last_acks,
                    abandoned=(),
                    topic="fragments",
                )
                break
            except GapError as error:
                self._restart_named(rng, error)
        else:
            raise AssertionError(f"not recovered after {_MAX_RECOVERIES} restarts of capture")
        self._lose_flushes(rng)
        first = [
            plan.by_partition[number].first if records else 0 for number, records in enumerate(self.streams.fragments)
        ]
        for watched in self.sources:
            part = plan.by_partition.get(watched.source.partition)
            begin = part.sources.get(watched.name, part.end) if part else 0
            # Without a start its next fragment may follow one that was lost before.
            watched.begin = begin if part and begin < part.end else 0
        self._use(CheckpointFolder((*first, 0), plan))

    def run_batch(self, rng: Random) -> None:
        """One batch; every fourth driver is killed in it: at a call on its table, or between its steps."""
        kill = rng.random() < 0.25
        self._batch(rng, self._die if kill else None, rng.randrange(12))

    def _batch(self, rng: Random, interrupt: Callable[[], None] | None, at: int) -> None:
        """Plan a batch, unless it is planned, and run it; ``interrupt`` happens at the step or call number ``at``."""
        job, batch_id = self.job, self.folder.last.batch_id + 1
        first = self.folder.begin_of(batch_id)
        if batch_id not in self.folder.plans:
            ends = self.streams.ends
            self.folder.plans[batch_id] = ends if rng.random() < 0.4 else tuple(map(rng.randint, first, ends))
        records = list(self.streams.read(first, self.folder.plans[batch_id], self.folder.starts))
        rng.shuffle(records)
        events = [record for record in records if not isinstance(record, Unreadable | DeletedFlush)]
        self._interrupt, self._calls_left = interrupt, at
        rows = len(self.table.rows)
        try:
            self._called()
            job.checkpoint = self.folder.last
            states, batch = job.run_groups(records, now_ms=self.batches)
            self._called()
            for watched in self.sources:
                watched.deliver(events)
            was_fenced = self.job is not job
            job.acknowledge(batch, batch_id)
            assert not was_fenced, "a fenced driver handled a batch"
            self._called()
        except KilledError:
            self.job = self._start_driver()
            return
        except (GapError, DecodeError) as error:
            self._check_refused(error, records, appended=len(self.table.rows) - rows if self.job is job else 0)
            return
        except SinkError:
            assert self.job is not job, "fenced without another driver"
            return
        except FencedError:
            # A stale driver committed this batch after the new one had read the state.
            if self.job is job:
                self.job = self._start_driver()
            return
        finally:
            self._interrupt = None
            assert self.job is job or len(self.table.rows) == self._rows_at_start, "a fenced driver appended"
            self._check_safety()
        self.events += len(records)
        self.batches += 1
        if self.job is not job and (self.folder.last.batch_id >= batch_id or rng.random() < 0.5):
            return  # Spark refuses a second commit of a batch, or the stale driver is killed.
        self._commit(Checkpoint(batch_id, states))
        if self.job is job:
            self.dead_letters += job.dead_letters.count
            job.dead_letters.count = 0
            self._check_exactness()

    def _commit(self, checkpoint: Checkpoint) -> None:
        self.folder.commits.append(checkpoint)
        for watched in self.sources:
            watched.note_merges(self.scenario.max_pending)

    def _called(self) -> None:
        self._calls_left -= 1
        if self._interrupt is not None and self._calls_left < 0:
            interrupt, self._interrupt = self._interrupt, None
            interrupt()

    def _die(self) -> None:
        raise KilledError

    def _take_over(self) -> None:
        """Another driver starts, and half of the time runs the batch itself before this one continues."""
        self.job = self._start_driver()
        try:
            if self.batches % 2:
                self._batch(Random(self.batches), None, 0)  # noqa: S311
        finally:
            self._rows_at_start = len(self.table.rows)

    def _start_driver(self) -> SimulatedJob:
        self._interrupt = None
        job = SimulatedJob(
            self.table,
            self.folder.last,
            shape_groups=self.scenario.shape_groups,
            max_pending=self.scenario.max_pending,
            with_pandas=self.scenario.with_pandas,
            opened=ObservedTable(self.table.open(), self._called),
        )
        self._rows_at_start = len(self.table.rows)
        for watched in self.sources:
            watched.outdated |= watched.has_forgotten
        return job

    def _use(self, folder: CheckpointFolder) -> None:
        """Start a driver on another checkpoint: what it has forgotten is read again."""
        self.folder = folder
        for watched in self.sources:
            watched.start_over(len(self.streams.flushes), merges=self.scenario.max_pending < DEFAULT_MAX_PENDING)
        self.job = self._start_driver()
        self._check_safety()

    def _lose_flushes(self, rng: Random) -> None:
        """A new checkpoint reads the flushes that compaction has left, and those that writers repeat.

        No flush of acknowledged transactions is needed: the topic may have lost them, and no writer repeats them.
        """
        above = self.table.last_acks if rng.random() < 0.3 else {}
        if above or rng.random() < 0.5:
            self.streams.compact(above)
        for watched in self.sources:
            watched.source.repeat_flushes(above.get(watched.name, -1))

    def _may_expire(self, event: FragmentEvent | Unreadable) -> bool:
        if isinstance(event, Unreadable):
            return False
        return event.lsn <= self.table.last_acks.get(event.source, -1)

    def _restart_named(self, rng: Random, error: GapError) -> None:
        """Restart the capture that a refused recovery names; it must have lost its start."""
        watched = next(each for each in self.sources if f"source {each.name} " in str(error))
        assert watched.source.damages, f"recovery of an undamaged source refused: {error}"
        watched.source.restart_capture(rng, self.table.last_acks.get(watched.name))
        watched.source.publish(1) if watched.source.run else watched.source.close()

    # Checks

    def _check_safety(self) -> None:
        for watched in self.sources:
            watched.check_safety(self.table.last_acks, self.job.trackers.get(watched.name))

    def _check_exactness(self) -> None:
        flushes_read = self.folder.plans[self.folder.last.batch_id][-1]
        for watched in self.sources:
            watched.check_exactness(flushes_read, self.job.trackers.get(watched.name), self.scenario.max_pending)

    def _check_refused(self, error: GapError | DecodeError, records: list[Record], appended: int) -> None:
        """A batch was refused: for damage, and before any ack."""
        assert not appended, f"acknowledged in spite of {error}"
        if isinstance(error, DecodeError):
            assert any(isinstance(record, Unreadable) and record.is_fragment for record in records)
            return
        watched = next(each for each in self.sources if f"source {each.name} " in str(error))
        watched.check_set_aside()

    def _finish(self) -> None:
        """Send and flush everything, recover from damage, and expect the last commit."""
        rng = Random(self.scenario.seed)  # noqa: S311
        for _ in range(_MAX_RECOVERIES):
            for watched in self.sources:
                watched.source.close()
                watched.source.flush_all()
            if self._read_to_the_end(rng) and not any(tracker.gap for tracker in self.job.trackers.values()):
                break
            for watched in self.sources:
                watched.source.restart_capture(rng, self.table.last_acks.get(watched.name))
                watched.source.close()
            self.recover(rng)
        for watched in self.sources:
            assert watched.ack_lsn == watched.source.closing_lsn, f"the last ack is {watched.ack_lsn}"
            assert self.job.is_caught_up(watched.name)
            history = watched.source.history
            self.streams.delete_flushes(history, history.written_offsets.keys() | history.removals.keys())
        self._read_to_the_end(rng)
        closing = {watched.name: watched.source.closing_lsn for watched in self.sources}
        for (source, shape_group), (packed, _, _) in self.folder.last.states.items():
            kept = {} if shape_group == CHAIN else shapes_of(ShapeGroup.unpack(packed))
            for label, view in kept.items():
                # A stray flush of the future may wait for it.
                assert (view.flushed or (-1, 0))[0] > closing[source], f"{label!r} is kept: {view}"

    def _read_to_the_end(self, rng: Random) -> bool:
        """Run batches until all is read; whether that worked."""
        while self.folder.begin_of(self.folder.last.batch_id + 1) != self.streams.ends:
            before, job = self.folder.last.batch_id, self.job
            self._batch(rng, None, 0)
            if self.folder.last.batch_id == before and self.job is job:
                return False
        return True
