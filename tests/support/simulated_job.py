"""The tracking job without Spark: micro-batches of events in, acks out, with a checkpoint that survives a kill.

Production code does every step: the state function runs each chain and each shape group on its packed state, and
``AckDriver`` raises errors, reduces the reports, and appends the acks that advanced. In Spark's place are:

- ``_rows_by_key``: groups the rows that ``tracking.job.rows`` makes of events by key;
- ``_Frame``: the frames in which a group gets its rows, unless the job is to use those of pandas, as Spark does;
- ``_State``: the state of one group, and ``Checkpoint``: the state of all groups after a committed batch;
- ``_Batch``: the call on the DataFrame of ``foreachBatch`` that the driver makes;
- ``CountedDeadLetters``: counts dead letters, whose files only Spark writes.

The driver can be killed before it acknowledges or before Spark commits; a new job on the same table and checkpoint is
the restart. Invariants are checked after each step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast
from unittest.mock import Mock

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState

from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.events.stream_events import FlushNotification
from flushtracker.spark.shape_grouping import shape_group_of
from flushtracker.tracking.acks.ack_table import AckTable
from flushtracker.tracking.job.dead_letters import DeadLetters
from flushtracker.tracking.job.driver import AckDriver, CommittedReports
from flushtracker.tracking.job.group_state import GroupSettings, handle_group, state_function
from flushtracker.tracking.job.live_job_status import LiveJobStatus
from flushtracker.tracking.job.rows import ROW_SCHEMA, read_parts
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.tracking.source_tracker import CHAIN, ReportRow, SourceTrackers
from tests.support.ack_rows import AckRows, StoredAcks
from tests.support.group_view import check_group
from tests.support.wal_history import Event


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that is no event."""

    value: str
    is_fragment: bool


@dataclass(frozen=True, slots=True)
class DeletedFlush:
    """A tombstone of a shape's flushes or of its removal."""

    key: str


Record = Event | Unreadable | DeletedFlush
GroupKey = tuple[str, str]
_State3 = tuple[bytes, str, int]
_InputRow = tuple[object, ...]

DEFAULT_MAX_PENDING: Final = 4096
_COLUMNS: Final = ROW_SCHEMA.fieldNames()
_PLACE: Final = "a.jsonl:1"
_TASKS: Final = 3


class KilledError(Exception):
    """The driver was killed; its uncommitted work is lost."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The committed state: the last batch, and the state of each chain and shape group after it."""

    batch_id: int = -1
    states: Mapping[GroupKey, _State3] = field(default_factory=dict)

    def groups(self) -> list[tuple[bytes, str]]:
        """The packed state and the last report of every shape group."""
        return [state[:2] for (_, shape_group), state in self.states.items() if shape_group != CHAIN]

    def committed_reports(self) -> CommittedReports:
        """What a starting driver reads."""
        return CommittedReports(self.batch_id, [ReportRow(*key, report) for key, (_, report, _) in self.states.items()])


@dataclass(slots=True)
class CountedDeadLetters:
    """The call on the table of dead letters that the driver makes."""

    count: int = 0

    def append(self, letters: object, batch_id: int, refused: int) -> None:  # noqa: ARG002  the same call
        self.count += refused


class SimulatedJob:
    """One run of the job, from its start until it is killed; the table and the checkpoint survive it."""

    def __init__(
        self,
        table: StoredAcks,
        checkpoint: Checkpoint | None = None,
        *,
        shape_groups: int = 16,
        max_pending: int = DEFAULT_MAX_PENDING,
        opened: object | None = None,
        with_pandas: bool = False,
    ) -> None:
        """``opened`` is this driver's own table, by default ``table`` opened: an ``AckTable``, or one like it.

        Frames of pandas take half of the time, so they are used only ``with_pandas``.
        """
        self.table = table
        self.checkpoint = checkpoint or Checkpoint()
        self._shape_groups = shape_groups
        acks = cast("AckTable", table.open() if opened is None else opened)
        acks.fence_others()
        self.dead_letters = CountedDeadLetters()
        self.watch = LiveJobStatus(60_000)
        self.driver = AckDriver(acks, cast("DeadLetters", self.dead_letters), self.watch)
        self.driver.restore(self.checkpoint.committed_reports())
        # As in Spark, new chains and groups start from the acks at the job's start.
        self._settings = GroupSettings(shape_groups, max_pending, acks.last_acks())
        self._with_pandas = with_pandas
        self._check()

    @property
    def trackers(self) -> SourceTrackers:
        return self.driver.trackers

    def run_batch(self, events: Iterable[Record], now_ms: int = 0, *, kill: str | None = None) -> None:
        """Process one micro-batch. ``kill``, if given, is where the driver dies: "before ack" or "before commit".

        Raises:
            GapError: a chain has a gap; nothing is acknowledged and nothing is committed.
            KilledError: the driver was killed at ``kill``.
        """
        batch_id = self.checkpoint.batch_id + 1
        states, batch = self.run_groups(events, now_ms)
        if kill == "before ack":
            raise KilledError
        self.acknowledge(batch, batch_id)
        if kill == "before commit":
            raise KilledError
        self.checkpoint = Checkpoint(batch_id, states)

    def run_groups(self, events: Iterable[Record], now_ms: int) -> tuple[Mapping[GroupKey, _State3], "_Batch"]:
        """The executors' step: the state after the batch, and the rows for the driver."""
        states = dict(self.checkpoint.states)
        output: list[dict[str, Any]] = []
        # The driver tells the tasks by a property of the batch.
        acked = {source: tracker.ack_lsn for source, tracker in self.trackers.items()}
        self._settings = replace(self._settings, last_acks={**self._settings.last_acks, **acked})
        for key, rows in self._rows_by_key(events).items():
            state = _State(states.get(key), now_ms)
            output += self._output(key, rows, cast("GroupState", state))
            if state.is_updated and state.value is not None:
                states[key] = state.value
                if key[1] != CHAIN:
                    check_group(ShapeGroup.unpack(state.value[0]))
        return states, _Batch(output)

    def acknowledge(self, batch: "_Batch", batch_id: int) -> None:
        """The driver's step."""
        self.driver.handle_batch(cast("DataFrame", batch), batch_id)
        self._check()

    def ack_lsn(self, source: str) -> int:
        return self.table.last_acks.get(source, -1)

    def group_of(self, shape_id: str) -> str:
        """The group of a shape."""
        return str(shape_group_of(shape_id, self._shape_groups)) if self._shape_groups else shape_id

    def kept_shapes(self) -> set[str]:
        """The labels of shapes that have state in any group."""
        return {label for packed, _ in self.checkpoint.groups() for label in ShapeGroup.unpack(packed).labels}

    def is_caught_up(self, source: str) -> bool:
        """Whether nothing is pending, as far as the driver knows."""
        tracker = self.trackers[source]
        return not tracker.holders and tracker.pending_shapes == 0

    def _check(self) -> None:
        for tracker in self.trackers.values():
            tracker.check_invariants()

    def _output(self, key: GroupKey, rows: list[_InputRow], state: GroupState) -> Iterator[dict[str, Any]]:
        """A group's output. It gets each row in a frame of its own, as Spark cuts the rows of a large group."""
        parts = ([row] for row in rows)
        if self._with_pandas:
            handle = state_function(self._settings)
            for frame in handle(key, (pd.DataFrame(part, columns=_COLUMNS) for part in parts), state):
                yield from _records(frame)
            return
        frames = cast("Iterable[pd.DataFrame]", map(_Frame, parts))
        for output in handle_group(key, frames, state, self._settings):
            yield from (row._asdict() for row in output)

    def _rows_by_key(self, events: Iterable[Record]) -> dict[GroupKey, list[_InputRow]]:
        """The rows by key; three tasks have read the events, in turns, so that a group has up to three rows."""
        records = [_event(event, _PLACE) for event in events]
        rows: dict[GroupKey, list[_InputRow]] = {}
        for task in (records[first::_TASKS] for first in range(_TASKS)):
            for parts in read_parts([task], self._shape_groups):
                for source, group, packed in parts:
                    rows.setdefault((source, group), []).append((source, group, packed))
        return rows


def _event(record: Record, place: str) -> tuple[str, bytes | None, str]:
    """The record as Spark has it: its stream, its bytes and its place."""
    if isinstance(record, DeletedFlush):
        return FLUSHES, None, record.key
    if isinstance(record, Unreadable):
        return FRAGMENTS if record.is_fragment else FLUSHES, record.value.encode(), place
    return FLUSHES if isinstance(record, FlushNotification) else FRAGMENTS, record.to_json().encode(), place


@dataclass(slots=True)
class _State:
    """The calls on Spark's ``GroupState`` that the state function makes."""

    value: _State3 | None
    now_ms: int
    is_updated: bool = False

    @property
    def exists(self) -> bool:
        return self.value is not None

    @property
    def get(self) -> _State3:
        assert self.value is not None
        return self.value

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802  pyspark's name
        return self.now_ms

    def update(self, value: _State3) -> None:
        self.value, self.is_updated = value, True


class _Frame:
    """The calls on an input frame that the state function makes."""

    __slots__ = ("_columns",)

    def __init__(self, rows: list[_InputRow]) -> None:
        self._columns = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))

    def __getitem__(self, name: str) -> "_Column":
        return _Column(self._columns[name])


class _Column(tuple[object, ...]):
    """A column of a :class:`_Frame`."""

    __slots__ = ()

    def tolist(self) -> Sequence[object]:
        return self


@dataclass(frozen=True, slots=True)
class _Batch:
    """The calls on the DataFrame of ``foreachBatch`` that the driver makes."""

    rows: list[dict[str, Any]]
    sparkSession: Any = field(default_factory=Mock)  # noqa: N815  pyspark's name

    def collect(self) -> list[dict[str, Any]]:
        return self.rows


def _records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of an output frame; what is missing is null in Spark."""
    names = frame.columns.tolist()
    for values in frame.to_numpy(dtype=object).tolist():
        yield {name: None if value != value else value for name, value in zip(names, values, strict=True)}  # noqa: PLR0124  NaN


def run_job(
    batches: Iterable[Iterable[Event]], shape_groups: int = 16, max_pending: int = DEFAULT_MAX_PENDING
) -> SimulatedJob:
    """Run the batches on a new job and return it."""
    job = SimulatedJob(AckRows(), shape_groups=shape_groups, max_pending=max_pending)
    for batch in batches:
        job.run_batch(batch)
    return job
