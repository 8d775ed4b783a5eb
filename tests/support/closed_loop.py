"""The closed loop around capture: run in steps, sampled after each step, and checked at the end."""

import random
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_loop_parts import Sample, Workload, Writers, required_flushes
from tests.support.capture_rig import CaptureRig, shape
from tests.support.waiting import wait_until

# Nobody takes snapshots here. With one to come, a shape may start after a transaction that is open when capture starts,
# and its log then lacks the rows from before.
SHAPES: Final = (
    shape("all", "public.rows", replica="full", snapshot=False),
    shape("ones", "public.rows", where="bucket = 1", snapshot=False),
    shape("others", "public.rows", where="bucket IN (2, 3)", depends_on=["ones"], snapshot=False),
)

# Each poll is a step of the load, so a longer pause would be less load.
_PAUSE_S: Final = 0.02
_TIMEOUT_S: Final = 300
_LEAST_ROWS: Final = 100


def prepare(rig: CaptureRig) -> None:
    """Create the slot, the topics, a table with three shapes and one without any; keep fragments small."""
    rig.settings["capture"]["max_batch_size"] = 10
    rig.create()
    rig.server.execute(
        "CREATE TABLE rows (id serial PRIMARY KEY, bucket int, note text)",
        "ALTER TABLE rows REPLICA IDENTITY FULL",
        "CREATE TABLE unwanted (id serial PRIMARY KEY, note text)",
    )
    rig.define(*SHAPES)


class HasSteps(Protocol):
    """A part of the loop."""

    def step(self) -> None: ...


_Tracker = TypeVar("_Tracker", bound=HasSteps)
_Writers = TypeVar("_Writers", bound=Writers)


class ClosedLoop(Generic[_Writers, _Tracker]):
    """The workload, the writers and the tracker; each step ends with a sample of the slot."""

    def __init__(
        self, rig: CaptureRig, seed: int, writers: Callable[..., _Writers], tracker: Callable[[CaptureRig], _Tracker]
    ) -> None:
        rng = random.Random(seed)  # noqa: S311  a reproducible test workload
        self.rig = rig
        self.seed = seed
        self.workload = Workload(rig, rng)
        self.writers = writers(rig, rng, KafkaPublisher(rig.config.kafka))
        self.tracker = tracker(rig)
        self.samples: list[Sample] = []

    def step(self, *, chance: float = 0.5) -> None:
        self.writers.step(chance=chance)
        self.tracker.step()
        self.sample()

    def sample(self) -> None:
        self.samples.append(Sample(self.rig.confirmed_lsn(), dict(self.writers.flushed)))

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        """Run the workload and the loop until ``condition`` holds."""

        def step_and_check() -> bool:
            self.workload.step()
            self.step()
            return bool(condition())

        wait_until(step_and_check, what, _TIMEOUT_S, pause_s=_PAUSE_S)

    def finish(self) -> None:
        """Run on until the table has enough rows; then flush everything, until the slot is past the last commit."""
        self.run_until(lambda: len(self._table()) > _LEAST_ROWS, f"more than {_LEAST_ROWS} rows")
        ((end,),) = self.rig.server.execute("SELECT pg_current_wal_insert_lsn()::text")

        def confirmed() -> bool:
            self.step(chance=1.0)
            return self.samples[-1].confirmed_lsn >= parse_lsn(end)

        wait_until(confirmed, "the slot past the last commit", _TIMEOUT_S, pause_s=_PAUSE_S)

    def check(self) -> None:
        """After :meth:`finish`: each shape's log reproduces its rows, and :meth:`check_samples`."""
        rig, table = self.rig, self._table()
        assert copy_of(rig, "all") == table
        assert copy_of(rig, "ones") == {key: row for key, row in table.items() if row[0] == "1"}
        assert copy_of(rig, "others") == {key: row for key, row in table.items() if row[0] in {"2", "3"}}
        self.check_samples()

    def _table(self) -> dict[int, tuple[str, str | None]]:
        found = self.rig.server.execute("SELECT id, bucket, note FROM rows")
        return {number: (str(bucket), note) for number, bucket, note in found}

    def check_samples(self) -> None:
        """The slot never passed an unflushed commit."""
        required = required_flushes(self.rig.changes())
        for sample in self.samples:
            for lsn, shapes in required.items():
                if lsn < sample.confirmed_lsn:
                    unflushed = [
                        key for key, last in shapes.items() if sample.flushed.get(key, LogOffset.before_all()) < last
                    ]
                    assert not unflushed, (
                        f"seed {self.seed}: {lsn} was confirmed at {sample.confirmed_lsn} before {unflushed}"
                    )


def copy_of(rig: CaptureRig, shape_id: str) -> dict[int, tuple[str | None, str | None]]:
    """The rows that folding the shape's log gives."""
    rows: dict[str, dict[str, str | None]] = {}
    for item in rig.items(shape_id):
        key = item.key or ""
        if item.operation == "delete":
            rows.pop(key)
        else:
            rows[key] = {**rows.get(key, {}), **(item.value or {})}
    return {int(row["id"] or 0): (row["bucket"], row["note"]) for row in rows.values()}
