"""What a release leaves in the middle of its work, and what it would go on to write: for later releases to continue.

``python -m tests.support.release_fixture FILE`` writes a zip file with the folders of a tracking job and of a writers'
job, both stopped inside transactions: streams, checkpoints and tables. In it is also ``facts.json``: the events that
follow, and the outcome of this release's own jobs, which were not stopped; and positions of followers, with what they
read next. Streams are files, whose lines are the values of Kafka's records.
"""

import json
import os
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import flushtracker
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.storage import table_rows
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader, read_shape
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.item_key import partition_prefix
from flushtracker.spark.session import start_session
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from flushtracker.wal.shape_list import listed_at
from tests.support.job_folder import JobFolder
from tests.support.log_follower import row_texts
from tests.support.sample_source import SampleSource
from tests.support.shape_log_rows import arrow, snapshot_rows
from tests.support.shape_transactions import SOURCE, Transactions
from tests.support.write_folder import WriteFolder

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
_FACTS: Final = "facts.json"
_ROOT: Final = b"/the/root/of/the/fixture"
"""Stands in a checkpoint's files of JSON for the folder that it was in. Other files are left: lengths are in them."""
_WITH_ROWS: Final = "with rows"
"""The shape that begins with a snapshot."""
_AGAIN: Final = "again"
"""The shape that has begun again, and waits for its next snapshot."""
_PARTED: Final = "parted"
"""The shape on a table with partitions."""
_JOINED: Final = "joined"
"""The shape with a subquery."""
_SHAPES: Final = ("a", "b", _WITH_ROWS, _AGAIN, _PARTED, _JOINED)
_FOLLOWED: Final = ("a", _WITH_ROWS)
_TABLE: Final = ("public", "t")

Step = Mapping[str, list[str]]
"""The lines of a micro-batch, by stream."""


@dataclass(frozen=True)
class Jobs:
    """The folders of both jobs, in ``root``."""

    root: Path

    @property
    def track(self) -> JobFolder:
        return JobFolder(self.root / "track")

    @property
    def write(self) -> WriteFolder:
        return WriteFolder(self.root / "write")

    def take_snapshot(self) -> None:
        """Create the log with rows from before: a transaction of the shape is in them, too."""
        log = str(self.root / "write" / "log")
        create_shape_log(log)
        files, snapshot = LogFiles(DeltaTable(log), {}), ShapeSnapshot(7, MvccSnapshot(1150, 1150), 1200, 1160)
        keys = [f'"t"/"{number}"' for number in range(3)]
        rows = snapshot_rows(snapshot, {key: {"v": key} for key in keys}, shape_id=_WITH_ROWS)
        added = files.write(arrow(row | {"source": SOURCE} for row in rows), None, is_change=True)
        files.append_snapshot([WrittenFile(added)], {(SOURCE, _WITH_ROWS): snapshot})

    def run(self, spark: SparkSession, track: Iterable[Step], write: Iterable[Step]) -> None:
        """Publish the steps, and run each job until it has read everything."""
        folder = self.track
        for step in track:
            folder.write(step["fragments"], step["flushes"])
        folder.run(spark)
        writer = self.write
        for step in write:
            entries = [parse_registry_entry(line) for line in step["shapes"]]
            writer.write(step["shape_changes"], [entry for entry in entries if isinstance(entry, ShapeEntry)])
        writer.run(spark)

    def positions(self) -> dict[str, str]:
        """Where followers are that have read all."""
        return {shape_id: self._followed(shape_id, None)[0] for shape_id in _FOLLOWED}

    def followed(self, positions: Mapping[str, str]) -> dict[str, Any]:
        """What they read next, and where they are then."""
        found = {shape_id: self._followed(shape_id, Position.parse(kept)) for shape_id, kept in positions.items()}
        return dict(json.loads(json.dumps(found)))

    def _followed(self, shape_id: str, position: Position | None) -> tuple[str, list[tuple[str, str, str]]]:
        read = ShapeLogReader(str(self.root / "write" / "log")).read_log(shape_id, position)
        rows = [(row["operation"], row["key"], row["value"]) for row in read.rows.to_pylist()]
        return str(read.position), rows

    def outcome(self) -> dict[str, Any]:
        """All that readers see: acks, dead letters, the rows of the logs, and what is notified."""
        notified: dict[str, LogOffset] = {}
        for file in self.write.notified():
            notified |= file
        outcome = {
            "acks": self.track.acks(),
            "dead_letters": self._dead_letters(),
            "rows": {shape_id: self.write.log_rows(shape_id) for shape_id in _SHAPES},
            "read": {shape_id: self._read(shape_id) for shape_id in _FOLLOWED},
            "notified": notified,
        }
        return dict(json.loads(json.dumps(outcome)))

    def _read(self, shape_id: str) -> list[str]:
        return row_texts(read_shape(str(self.root / "write" / "log"), shape_id).rows.to_pylist())

    def _dead_letters(self) -> list[tuple[int, str]]:
        """The batch and the line of each."""
        rows = table_rows(DeltaTable(str(self.root / "track" / "dead_letters")), ["batch_id", "value"]).to_pylist()
        return sorted((row["batch_id"], row["value"]) for row in rows)


def write_fixture(spark: SparkSession, path: Path) -> None:
    """Write the fixture of this release."""
    track, write = _track_steps(), _write_steps()
    with tempfile.TemporaryDirectory(prefix="flushtracker-fixture-") as scratch:
        whole, half = Jobs(Path(scratch) / "whole"), Jobs(Path(scratch) / "half")
        whole.take_snapshot()
        for steps in ((track, write), ([], [])):
            whole.run(spark, *steps)
        half.take_snapshot()
        half.run(spark, track[:2], write[:2])
        positions = half.positions()
        files = sorted(file for file in half.root.rglob("*") if file.is_file())
        facts = {
            "release": flushtracker.__version__,
            "spark": spark.version,
            "track": track[2:],
            "write": write[2:],
            "outcome": whole.outcome(),
            "positions": positions,
            "followed": whole.followed(positions),
            # Spark knows a file of a stream by its path and its time.
            "times_ns": {str(file.relative_to(half.root)): file.stat().st_mtime_ns for file in files},
        }
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_FACTS, json.dumps(facts, indent=1))
            for file in files:
                name = str(file.relative_to(half.root))
                archive.writestr(name, _moved(name, file.read_bytes(), str(half.root).encode(), _ROOT))


def open_fixture(path: Path, root: Path) -> tuple[Jobs, dict[str, Any]]:
    """Unpack a fixture into ``root``; returns its jobs and its facts."""
    with zipfile.ZipFile(path) as archive:
        facts: dict[str, Any] = json.loads(archive.read(_FACTS))
        for name, time_ns in facts["times_ns"].items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_moved(name, archive.read(name), _ROOT, str(root).encode()))
            os.utime(file, ns=(time_ns, time_ns))
    return Jobs(root), facts


def _moved(name: str, content: bytes, root: bytes, new: bytes) -> bytes:
    """The content of a file in ``root`` for one in ``new``: where a checkpoint says which files were read."""
    is_text = "checkpoint" in Path(name).parts and "state" not in Path(name).parts
    return content.replace(root, new) if is_text else content


def _track_steps() -> list[Step]:
    """Three shapes: pending, flushed and removed; a transaction that two batches have, cut in the list of its shapes.

    Also a line that nobody can read.
    """
    source = SampleSource()
    whole = [source.transaction(2000, "a", "b"), source.transaction(3000, "b", op=4)]
    ends = {"a": 3, "c": None}
    listed, last = sorted(ends, key=listed_at)
    begun = source.fragment(4000, 1, {"a": 1, "c": 0}), source.fragment(4000, listed_at(listed), {listed: ends[listed]})
    ended = source.fragment(4000, listed_at(last), {last: ends[last]}, commit=True)
    later = source.transaction(5000, "b"), source.keepalive(6000)
    steps = [
        (whole, [source.flushed("a", 2000)]),
        (begun, [source.flushed("b", 2000), source.removed("gone", 2000)]),
        ([ended], [source.flushed("b", 3000, 4)]),
        (later, [source.flushed("a", 4000, 3), source.flushed("c", 4000)]),
        ([], [source.flushed("b", 5000)]),
    ]
    return [
        {
            "fragments": [event.to_json() for event in fragments],
            "flushes": [event.to_json() for event in flushes] + (["no event"] if number in {1, 3} else []),
        }
        for number, (fragments, flushes) in enumerate(steps)
    ]


def _write_steps() -> list[Step]:
    """Shapes with transactions that two batches have; one begins again in the second batch."""
    steps: list[dict[str, list[str]]] = [{"shape_changes": [], "shapes": []} for _ in range(4)]
    rng = random.Random(7)  # noqa: S311  a reproducible load
    for shape_id in _SHAPES:
        stream, definition, first = Transactions(shape_id, rng), _definition(shape_id), 0
        stream.grow(12)
        lsns = list(stream.items)
        steps[0]["shapes"].append(_entry(definition, 900))
        if shape_id == _AGAIN:
            steps[0]["shape_changes"] += [event.to_json() for event in stream.events(lsns[:3])]
            stream.begin_again()
            steps[1]["shapes"].append(_entry(replace(definition, incarnation=2, snapshot=True), lsns[2]))
            lsns, first = lsns[3:], 1
        events = [_emptying(event) if shape_id == _PARTED else event for event in stream.events(lsns)]
        inside = [number for number, event in enumerate(events) if number and not event.has_begin]
        cuts = [0, *sorted(rng.sample(inside, len(steps) - 1 - first)), len(events)]
        for step, (start, end) in zip(steps[first:], pairwise(cuts), strict=True):
            step["shape_changes"] += [event.to_json() for event in events[start:end]]
    return [dict(step) for step in steps]


def _definition(shape_id: str) -> ShapeDefinition:
    plain = ShapeDefinition(shape_id, _TABLE, primary_key=("id",), snapshot=shape_id == _WITH_ROWS)
    if shape_id == _PARTED:
        return replace(plain, keys_have_partitions=True)
    if shape_id == _JOINED:
        where = "v IN (SELECT w FROM public.u)"
        return replace(plain, where=where, inner_tables=(InnerTable(("public", "u"), 16390, ("id",)),))
    return plain


def _entry(definition: ShapeDefinition, starts_after: int) -> str:
    return ShapeEntry(SOURCE, definition, 16385, LogOffset(starts_after, 0)).to_json()


def _emptying(event: ShapeChangesEvent) -> ShapeChangesEvent:
    """The event, of which the first item empties a partition."""
    partition = partition_prefix(_TABLE, 16391)
    first = [replace(item, operation="truncate_partition", key=partition, value=None) for item in event.items[:1]]
    return replace(event, items=(*first, *event.items[1:]))


def main() -> int:
    """Write the fixture to the file that is the only argument."""
    spark = start_session("fixture", shuffle_partitions=2)
    try:
        write_fixture(spark, Path(sys.argv[1]))
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
