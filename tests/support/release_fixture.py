"""What a release leaves in the middle of its work, and what it would go on to write: for later releases to continue.

``python -m tests.support.release_fixture FILE`` writes a zip file with the folders of a tracking job and of a writers'
job, both stopped inside transactions: streams, checkpoints and tables. In it is also ``facts.json``: the events that
follow, and the outcome of this release's own jobs, which were not stopped. Streams are files, whose lines are the
values of Kafka's records.
"""

import json
import os
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from pyspark.sql import SparkSession

import flushtracker
from flushtracker.delta.storage import table_rows
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.spark.session import start_session
from flushtracker.wal.log_offset import LogOffset
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource
from tests.support.shape_transactions import SOURCE, Transactions
from tests.support.write_folder import WriteFolder

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
_FACTS: Final = "facts.json"
_ROOT: Final = b"/the/root/of/the/fixture"
"""Stands in a checkpoint's files of JSON for the folder that it was in. Other files are left: lengths are in them."""
_SHAPES: Final = ("a", "b")

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

    def outcome(self) -> dict[str, Any]:
        """All that readers see: acks, dead letters, the rows of the logs, and what is notified."""
        notified: dict[str, LogOffset] = {}
        for file in self.write.notified():
            notified |= file
        outcome = {
            "acks": self.track.acks(),
            "dead_letters": self._dead_letters(),
            "rows": {shape_id: self.write.log_rows(shape_id) for shape_id in _SHAPES},
            "notified": notified,
        }
        return dict(json.loads(json.dumps(outcome)))

    def _dead_letters(self) -> list[tuple[int, str]]:
        """The batch and the line of each."""
        rows = table_rows(DeltaTable(str(self.root / "track" / "dead_letters")), ["batch_id", "value"]).to_pylist()
        return sorted((row["batch_id"], row["value"]) for row in rows)


def write_fixture(spark: SparkSession, path: Path) -> None:
    """Write the fixture of this release."""
    track, write = _track_steps(), _write_steps()
    with tempfile.TemporaryDirectory(prefix="flushtracker-fixture-") as scratch:
        whole, half = Jobs(Path(scratch) / "whole"), Jobs(Path(scratch) / "half")
        for steps in ((track, write), ([], [])):
            whole.run(spark, *steps)
        half.run(spark, track[:2], write[:2])
        files = sorted(file for file in half.root.rglob("*") if file.is_file())
        facts = {
            "release": flushtracker.__version__,
            "spark": spark.version,
            "track": track[2:],
            "write": write[2:],
            "outcome": whole.outcome(),
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
    """Three shapes: pending, flushed and removed; a transaction that two batches have; a line that nobody can read."""
    source = SampleSource()
    whole = [source.transaction(2000, "a", "b"), source.transaction(3000, "b", op=4)]
    begun = source.fragment(4000, 1, {"a": 1, "c": 0})
    ended = source.fragment(4000, 3, {"a": 3, "c": None}, commit=True)
    later = source.transaction(5000, "b"), source.keepalive(6000)
    steps = [
        (whole, [source.flushed("a", 2000)]),
        ([begun], [source.flushed("b", 2000), source.removed("gone", 2000)]),
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
    """Two shapes, with transactions that two batches have."""
    steps: list[dict[str, list[str]]] = [{"shape_changes": [], "shapes": []} for _ in range(4)]
    rng = random.Random(7)  # noqa: S311  a reproducible load
    for shape_id in _SHAPES:
        stream = Transactions(shape_id, rng)
        stream.grow(12)
        events = list(stream.events(list(stream.items)))
        inside = [number for number, event in enumerate(events) if number and not event.has_begin]
        cuts = [0, *sorted(rng.sample(inside, len(steps) - 1)), len(events)]
        for step, start, end in zip(steps, cuts, cuts[1:], strict=False):
            step["shape_changes"] += [event.to_json() for event in events[start:end]]
        definition = ShapeDefinition(shape_id, ("public", "t"))
        steps[0]["shapes"].append(ShapeEntry(SOURCE, definition, 16385, LogOffset(900, 0)).to_json())
    return [dict(step) for step in steps]


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
