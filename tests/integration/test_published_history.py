"""A writer of another storage gets snapshots while clients change the tables, and everything is killed now and then."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.brokers import Broker
from tests.support.capture_rig import DEADLINE_S, ROOT, CaptureRig, shape
from tests.support.published_snapshots import PublishingRig, publishing_rig
from tests.support.seeds import seeds
from tests.support.snapshot_judge import judge, transactions
from tests.support.snapshot_workload import NAMES, TABLES, Workload
from tests.support.waiting import wait_until

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_SNAPSHOT_SEEDS", "1"))
_KILLS: Final = 2
_CONDITIONS: Final = {"": None, " some": "grp < 3"}


class Processes:
    """The example writer and the job that publishes snapshots; each is killed and started again."""

    def __init__(self, publishing: PublishingRig) -> None:
        folder = publishing.rig.folder
        self.database, self._log = folder / "shapes.db", folder / "processes.log"
        config = str(publishing.config_file(trigger="100 ms"))
        snapshot = [*("-m", "tests.support.slow_snapshots", "snapshot", "--config")]
        self._commands = {
            "writer": [str(ROOT / "examples" / "sqlite_writer.py"), config, str(self.database)],
            "snapshot": [*snapshot, config],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, *self._commands[name], *arguments]
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)

    def kill(self, name: str) -> None:
        """Kill it; it must not have ended by itself."""
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} ended: {self._log.read_text()}"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def rows(self) -> dict[str, dict[str, dict[str, str | None]]]:
        """What readers of the writer's storage see of each shape that has its snapshot."""
        command = [sys.executable, str(ROOT / "examples" / "dump_sqlite.py"), str(self.database), "--rows"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = map(json.loads, done.stdout.splitlines())
        return {line["shape_id"]: line["rows"] for line in lines}

    def snapshots(self) -> Iterator[tuple[SnapshotEvent, list[tuple[str, str]]]]:
        """Each complete snapshot, with its keys and values, as they are stored."""
        with closing(sqlite3.connect(self.database)) as database:
            for (text,) in database.execute("SELECT complete FROM snapshots WHERE complete IS NOT NULL").fetchall():
                end = SnapshotEvent.from_json(text)
                of_attempt = "SELECT key, value FROM snapshot_rows WHERE source = ? AND shape_id = ? AND attempt = ?"
                yield end, database.execute(of_attempt, (end.source, end.shape_id, end.attempt)).fetchall()


@pytest.fixture
def publishing(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[PublishingRig]:
    with publishing_rig(postgres, broker, tmp_path, topic_name, TABLES) as publishing:
        yield publishing


def define(rig: CaptureRig, count: int) -> list[str]:
    """The whole tables without a snapshot, and so many shapes on each with one; returns the ids of these."""
    whole = [shape(f"whole {name}", f"public.{name}", snapshot=False) for name in NAMES]
    added = [
        shape(f"{name} {number}{suffix}", f"public.{name}", **({} if where is None else {"where": where}))
        for number in range(count)
        for name in NAMES
        for suffix, where in _CONDITIONS.items()
    ]
    rig.define(*({**each, "writer": "own"} for each in (*whole, *added)))
    return [each["id"] for each in added]


@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_every_state_of_a_writer_is_one_of_the_table(publishing: PublishingRig, seed: int) -> None:
    """Whatever is killed: the job in the middle of attempts, and the writer. In the end its rows are the queries'."""
    rng, rig, processes = random.Random(seed), publishing.rig, Processes(publishing)  # noqa: S311  repeatable
    define(rig, 0)
    rig.start()
    rig.wait(lambda: len(rig.registry()) == len(NAMES), "the shapes of the whole tables")
    with Workload(rig.server, rng.randrange(1000)) as workload, closing(processes):
        processes.start("writer")
        for kill in range(_KILLS):
            _define_visible(rig, kill + 1)
            last = publishing.last_attempt()
            processes.start("snapshot", str(rng.randint(1, 3)))
            rig.wait(partial(publishing.is_within_an_attempt_after, last), "the middle of an attempt")
            processes.kill("snapshot")
            processes.kill("writer")
            processes.start("writer")
        shape_ids = _define_visible(rig, _KILLS + 1)
        processes.start("snapshot", "0")
        wait_until(lambda: processes.rows().keys() >= set(shape_ids), f"the rows of {shape_ids}", 2 * DEADLINE_S)
        workload.stop()
        _assert_rows(publishing, processes, shape_ids)


def _define_visible(rig: CaptureRig, count: int) -> list[str]:
    """Define so many shapes on each table, and wait until their snapshots can be taken; returns their ids."""
    shape_ids = define(rig, count)

    def are_visible() -> bool:
        registry = rig.registry()
        return all(name in registry and registry[name].starts_visible for name in shape_ids)

    rig.wait(are_visible, f"the starts of {shape_ids} to be visible")
    return shape_ids


def _assert_rows(publishing: PublishingRig, processes: Processes, shape_ids: list[str]) -> None:
    """The writer's rows become those of the queries, and each of its states from the snapshot on was right."""
    rig = publishing.rig
    rig.wait_for_commits(rig.commit_lsn("SELECT pg_log_standby_snapshot()"))
    expected = {}
    with closing(rig.server.connect()) as connection:
        for shape_id in shape_ids:
            name, where = shape_id.partition(" ")[0], _CONDITIONS[" some" if "some" in shape_id else ""]
            rows = shape_rows(connection, ShapeDefinition("s", ("public", name), where=where))
            expected[shape_id] = sorted(map(str, (sorted(row.items()) for row in rows)))

    def are_equal() -> bool:
        found = processes.rows()
        return expected == {
            shape_id: sorted(str(sorted(row.items())) for row in found[shape_id].values()) for shape_id in shape_ids
        }

    wait_until(are_equal, "the writer's rows to be those of the queries", DEADLINE_S)
    events, contained, compared = rig.changes(), 0, 0
    whole = {name: transactions(events, f"whole {name}") for name in NAMES}
    for end, region in processes.snapshots():
        assert end.end is not None
        table = whole[end.shape_id.partition(" ")[0]]
        is_in: Callable[..., bool] = (lambda row: int(row["grp"]) < 3) if "some" in end.shape_id else lambda _: True
        verdict = judge(end.end.contained, region, transactions(events, end.shape_id), table, is_in)
        assert not verdict.faults, f"{end.shape_id}: {len(verdict.faults)} faults, first {verdict.faults[:3]}"
        contained, compared = contained + verdict.contained, compared + verdict.compared
    assert contained > 0
    assert compared > len(shape_ids)
    begun = {event.attempt for event in publishing.events()}
    ended = {event.attempt for event in publishing.events() if event.end is not None}
    assert begun - ended, "no attempt was torn"
