"""Snapshots of shapes that are added while clients change their tables: right at every moment, not just at the end."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pytest

from flushtracker.config.postgres_config import TablesConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import PostgresUnavailableError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.snapshot_export import exported_table
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.snapshot.read_ranges import RangeError, read_function
from flushtracker.shape_log.snapshot.table_reads import read_plan, shape_reads
from flushtracker.shapes.table_binding import TableBinding
from tests.support.capture_rig import DEADLINE_S, CaptureRig, RigOn, RunningCapture, shape
from tests.support.seeds import seeds
from tests.support.snapshot_judge import Verdict, judge, transactions
from tests.support.snapshot_workload import NAMES, TABLES, Workload
from tests.support.waiting import wait_until

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_SNAPSHOT_SEEDS", "1"))
_ROUNDS: Final = 2
_SETTLE_S: Final = 0.3
_Taken = tuple[str, ShapeSnapshot, list[tuple[str, str]]]


class Stage:
    """A server whose tables are changed all the time, and capture."""

    def __init__(self, rig: CaptureRig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)  # noqa: S311  repeatable
        self.defined = [shape(f"whole {name}", f"public.{name}", snapshot=False) for name in NAMES]
        self.taken: list[_Taken] = []
        rig.define(*self.defined)
        rig.create()
        self.capture: RunningCapture = rig.start()
        rig.wait(lambda: len(rig.registry()) == len(NAMES), "the shapes of the whole tables")

    def add_shapes(self) -> list[str]:
        """Two shapes on each table, one of them with a condition; returns their ids."""
        number = len(self.defined)
        added = [shape(f"{name} {number}", f"public.{name}") for name in NAMES]
        added += [shape(f"{name} {number} some", f"public.{name}", where="grp < 3") for name in NAMES]
        self.defined += added
        self.rig.define(*self.defined)
        return [each["id"] for each in added]

    @contextmanager
    def commits_hanging(self) -> Iterator[None]:
        """Perhaps let commits wait for a standby that is not there: in the WAL, and routed, but not visible."""
        if self.rng.random() < 0.5:
            yield
            return
        self.rig.server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
        try:
            time.sleep(self.rng.random())
            yield
        finally:
            self.rig.server.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")

    def await_visible(self, shape_ids: list[str]) -> None:
        def are_visible() -> bool:
            registry = self.rig.registry()
            return all(name in registry and registry[name].starts_visible for name in shape_ids)

        self.rig.wait(are_visible, f"capture to know that the starts of {shape_ids} are visible")

    def take(self, shape_id: str) -> None:
        wait_until(lambda: self.try_to_take(shape_id), f"a snapshot of {shape_id}", DEADLINE_S)

    def try_to_take(self, shape_id: str) -> bool:
        """Take a snapshot, unless a TRUNCATE has its table, or waits for it: then nobody else can lock it."""
        try:
            self._take(shape_id)
        except (PostgresUnavailableError, RangeError) as error:
            if "could not obtain lock" not in str(error) and "lock timeout" not in str(error):
                raise
            return False
        return True

    def _take(self, shape_id: str) -> None:
        """The parts of the job, but without Spark; for both shapes on the table, in one pass."""
        entry, bound = self._entries(shape_id)
        other = shape_id.removesuffix(" some") if shape_id.endswith(" some") else f"{shape_id} some"
        options = SecretOptions(self.rig.server.options)
        config = TablesConfig(options, "shapes")
        with exported_table(options, entry.source, bound.table, bound.oid, publication="shapes", lock_timeout_s=1) as (
            connection,
            exported,
        ):
            # Whatever commits from here on, and however late a range is read.
            time.sleep(self.rng.random() * _SETTLE_S)
            attempt = exported.taken_us
            reads = tuple(shape_reads(self._entries(each)[0], bound, exported) for each in (shape_id, other))
            plan = read_plan(config, connection, entry.source, exported, attempt, reads)
            numbers = pa.RecordBatch.from_pydict({"id": list(range(len(plan.ranges)))})
            rows = [row for batch in read_function(plan)(iter([numbers])) for row in batch.to_pylist()]
        snapshot = ShapeSnapshot(attempt, exported.visible, exported.lsn, exported.next_xid)
        for each in (shape_id, other):
            found = [(row["key"], row["value"]) for row in rows if row["shape_id"] == each]
            self.taken.append((each, snapshot, found))

    def _entries(self, shape_id: str) -> tuple[ShapeEntry, TableBinding]:
        registry = Registry.of(parse_registry_entry(value) for value in self.rig.values("shapes"))
        entry = self.rig.registry()[shape_id]
        table = registry.table_of(entry)
        assert table is not None
        return entry, table

    def verdicts(self) -> Iterator[tuple[str, Verdict]]:
        """Judge each snapshot by all that was routed."""
        events = self.rig.changes()
        whole = {name: transactions(events, f"whole {name}") for name in NAMES}
        for shape_id, snapshot, region in self.taken:
            table = whole[shape_id.partition(" ")[0]]
            is_in: Callable[..., bool] = (lambda row: int(row["grp"]) < 3) if "some" in shape_id else lambda _: True
            yield shape_id, judge(snapshot.contained, region, transactions(events, shape_id), table, is_in)


@pytest.fixture
def stage(request: pytest.FixtureRequest, postgres: LocalPostgres, rig_on: RigOn) -> Stage:
    postgres.execute(*TABLES)
    return Stage(rig_on(postgres), request.param)


@pytest.mark.parametrize("stage", seeds(_SEEDS), indirect=True)
def test_every_state_after_a_snapshot_is_one_of_the_table(stage: Stage) -> None:
    """Shapes are added, their snapshots taken, late and again, and capture is restarted, while clients work."""
    rig = stage.rig
    with Workload(rig.server, stage.rng.randrange(1000)):
        for _ in range(_ROUNDS):
            time.sleep(1)
            with stage.commits_hanging():
                added = stage.add_shapes()
                if stage.rng.random() < 0.5:
                    stage.capture.stop()
                    stage.capture = rig.start()
                time.sleep(0.5)
            stage.await_visible(added)
            with stage.commits_hanging():
                waiting = [shape_id for shape_id in added if not stage.try_to_take(shape_id)]
            for shape_id in [*waiting, stage.rng.choice(added)]:
                stage.take(shape_id)
        time.sleep(1)
    rig.wait_for_commits(rig.commit_lsn("SELECT pg_log_standby_snapshot()"))
    contained = compared = 0
    for shape_id, verdict in stage.verdicts():
        assert not verdict.faults, f"{shape_id}: {len(verdict.faults)} faults, first {verdict.faults[:3]}"
        contained, compared = contained + verdict.contained, compared + verdict.compared
    assert contained > 0
    assert compared > len(stage.taken)
    assert all(entry.removed_at is None for entry in rig.registry().values())
