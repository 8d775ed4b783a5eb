"""``LocalLoop``: the whole loop without Spark. Capture runs in a thread; all other parts take a step when told to.

Server, broker, and the Delta tables are real, and so is the code of each part: what Spark and the programs around them
do is a few lines here, in the same order.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.row_files import RowFiles
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.kafka.flush_notifier import FlushNotifier
from flushtracker.kafka.topic_reader import TopicFollower
from flushtracker.process.clock import now_ms
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.shape_log.snapshot import reading
from flushtracker.shape_log.snapshot.delta_snapshots import DeltaSnapshots
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.read_job import to_log_rows
from flushtracker.shape_log.snapshot.read_plan import ReadPlan
from flushtracker.shape_log.snapshot.read_ranges import read_function
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.write.packed_rows import pack_rows, unpacked
from flushtracker.shape_log.writer_group import ShapeBatch, WriterGroup, WriterSettings
from tests.support.capture_loop_parts import Tracker
from tests.support.capture_rig import CaptureRig, RunningCapture
from tests.support.config_file import merged, write_config


class LocalReadJob:
    """In place of ``ReadJob``: reads the ranges when it is started."""

    def __init__(self, _: object, files: RowFiles, plan: ReadPlan, numbers: range, __: int) -> None:
        self._files, self._plan, self._numbers = files, plan, numbers
        self._written: list[WrittenFile] = []

    def start(self) -> None:
        numbers = pa.RecordBatch.from_pydict({"id": list(self._numbers)})
        rows = map(to_log_rows(self._plan.source, self._plan.attempt), read_function(self._plan)(iter([numbers])))
        self._written = list(self._files.write(rows))

    def wait(self, _: float) -> bool:
        return True

    def cancel(self) -> None:
        pass

    def written(self) -> list[WrittenFile]:
        return self._written


class _Evictions:
    """In place of the policy: evicts what a test says."""

    def __init__(self) -> None:
        self.due = list[str]()
        self.evicted = 0

    def evict(self, _: str, subscriptions: Subscriptions) -> None:
        while self.due:
            assert subscriptions.evict(self.due.pop(), "its writer is silent, says the test", now_ms())
            self.evicted += 1


class LocalWriter:
    """The writer of all shapes, and of the registry table, in ``folder``."""

    def __init__(self, rig: CaptureRig, log: Path, shapes: Path) -> None:
        self._config = config = rig.config.kafka
        table = create_shape_log(str(log))
        self._registry = RegistryTable(str(shapes), create=True)
        self._files, self._log, self._claim = row_files(table, {}), LogFiles(table, {}), LogClaim(table)
        self._claim.take()
        self._states: dict[str, bytes] = {}
        self._batch_id = 0
        with ExitStack() as stack:
            self._changes = stack.enter_context(
                closing(TopicFollower(config, config.topics.shape_changes, only_committed=False))
            )
            self._entries = stack.enter_context(
                closing(TopicFollower(config, config.topics.shapes, only_committed=False))
            )
            self._notifier = stack.enter_context(FlushNotifier(config, writer="log"))
            self._open = stack.pop_all()

    def step(self) -> None:
        """Take what is new as one micro-batch."""
        changes, entries = defaultdict[str, list[ChangeColumns]](list), defaultdict[str, list[ShapeEntry]](list)
        texts = self._entries.values(0.02)
        for value in self._changes.values(0.02):
            changes[json.loads(value)["source"]].append(read_changes(value))
        for value in texts:
            entry = parse_registry_entry(value)
            if isinstance(entry, ShapeEntry):
                entries[entry.source].append(entry)
        batches = {source: self._handle(source, changes[source], entries[source]) for source in {*changes, *entries}}
        if texts:
            self._registry.append([text.decode() for text in texts], datetime.now(timezone.utc))
        begun = {(source, each.shape_id): each.begun for source, of in batches.items() for each in of if each.begun}
        if begun:
            self._log.mark_incarnations(begun, datetime.now(timezone.utc))
        rows = [packed for source, of in batches.items() for each in of for packed in _packed(source, each)]
        if rows:
            self._batch_id += 1
            self._claim.append(list(self._files.write(unpacked(rows))), self._claim.version_of(self._batch_id))
        for source, of in batches.items():
            for each in of:
                if each.notified is not None:
                    self._notifier.flushed(source, each.shape_id, each.notified)
        self._notifier.flush()

    def read_again(self) -> None:
        """Read all changes again, as if all had been sent again: the brokers have lost some that were read."""
        follower = TopicFollower(self._config, self._config.topics.shape_changes, only_committed=False)
        self._changes = self._open.enter_context(closing(follower))

    def close(self) -> None:
        self._open.close()

    def _handle(self, source: str, changes: Iterable[ChangeColumns], entries: Iterable[ShapeEntry]) -> list[ShapeBatch]:
        group = WriterGroup(source, WriterSettings(), self._states.get(source))
        batches = group.handle_batch(changes, entries, now_ms())
        self._states[source] = group.pack()
        assert not [each.gap for each in batches if each.gap]
        return batches


class LocalLoop:
    """All parts, around the capture of ``rig``, whose topics exist. Close it when done."""

    def __init__(self, rig: CaptureRig, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(reading, "ReadJob", LocalReadJob)
        self.rig = rig
        self.log, self._shapes = rig.folder / "log", rig.folder / "log_shapes"
        self._writer = LocalWriter(rig, self.log, self._shapes)
        self._tracker = Tracker(rig)
        self._evictions = _Evictions()
        self.capture: RunningCapture | None = None

    def start(self, *, new_epoch: bool = False, upgraded_from: str | None = None) -> None:
        stop = Event()
        loop = CaptureLoop(self.rig.config, stop, new_epoch=new_epoch, upgraded_from=upgraded_from)
        loop._evictor = self._evictions  # type: ignore[assignment]
        self.capture = RunningCapture(loop, stop)
        self.rig._captures.append(self.capture)

    def stop(self) -> None:
        assert self.capture is not None
        self.capture.stop()

    def read_again(self) -> None:
        """As :meth:`LocalWriter.read_again`."""
        self._writer.read_again()

    def evict(self, shape_id: str) -> None:
        self._evictions.due.append(shape_id)

    def step(self) -> None:
        """A step of the writer, the tracker and the snapshots."""
        if self.capture is not None and self.capture.error is not None:
            raise self.capture.error
        self._writer.step()
        self._tracker.step()
        self.take_snapshots()

    def take_snapshots(self, *again: str) -> None:
        """Take those that are due, or of these shapes once more."""
        settings = merged(self.rig.settings, {"postgres": dict(self.rig.server.options)})
        config = load_snapshot_config(write_config(self.rig.folder / "snapshot.yaml", settings))
        store = DeltaSnapshots(None, config)  # type: ignore[arg-type]
        SnapshotLoop(store, config, Event(), again, again=bool(again)).run()

    def close(self) -> None:
        self._writer.close()


def _packed(source: str, batch: ShapeBatch) -> Iterable[bytes]:
    count = len(batch.rows)
    return pack_rows(source, [batch.shape_id] * count, batch.rows, datetime.now(timezone.utc)) if count else ()
