"""``TpcbLoop``: the whole loop under TPC-B, of whose four tables each transaction changes one row by the same amount.

So at every moment the balances of accounts, tellers and branches, and the amounts in the history, have the same sum.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Final

from flushtracker.delta.log.reader import ShapesRead, read_shapes
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import CutMissingError, SnapshotMissingError
from tests.support.brokers import Broker
from tests.support.capture_rig import run_in_transaction, shape
from tests.support.waiting import wait_until
from tests.support.whole_loop import WholeLoop

DEADLINE_S: Final = 180
AMOUNTS: Final = {"accounts": "abalance", "tellers": "tbalance", "branches": "bbalance", "history": "delta"}
SPARE: Final = "spare branches"
"""A second shape on the branches, which may be removed."""
_TABLES: Final = (
    "CREATE TABLE accounts (aid int PRIMARY KEY, abalance int NOT NULL)",
    "CREATE TABLE tellers (tid int PRIMARY KEY, tbalance int NOT NULL)",
    "CREATE TABLE branches (bid int PRIMARY KEY, bbalance int NOT NULL)",
    "CREATE TABLE history (hid bigserial PRIMARY KEY, delta int NOT NULL)",
    "INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 100) AS n",
    "INSERT INTO tellers SELECT n, 0 FROM generate_series(1, 10) AS n",
    "INSERT INTO branches SELECT n, 0 FROM generate_series(1, 3) AS n",
)
_TRANSACTION: Final = (
    "UPDATE accounts SET abalance = abalance + {amount} WHERE aid = {aid}",
    "UPDATE tellers SET tbalance = tbalance + {amount} WHERE tid = {tid}",
    "UPDATE branches SET bbalance = bbalance + {amount} WHERE bid = {bid}",
    "INSERT INTO history (delta) VALUES ({amount})",
)
_SESSIONS: Final = 2
_LONGEST_PAUSE_S: Final = 0.3


class TpcbLoop(WholeLoop):
    """A context manager in which everything runs, transactions and the snapshots of all shapes among it."""

    def __init__(self, folder: Path, broker: Broker, seed: int) -> None:
        super().__init__(folder, flush="batch", write_unit="txn_fragment")
        self.shared_broker = broker
        self._stop = Event()
        self._failures: list[BaseException] = []
        self._sessions = [Thread(target=self._run, args=(seed + n,)) for n in range(_SESSIONS)]

    def _start(self) -> None:
        self.writing["acks"] = str(self.rig.acks)
        self.writing["snapshot"] = "auto"
        self.writing["postgres"] = {"connection": dict(self.server.options), "publication": "shapes"}
        self.rig.settings["intervals"]["keepalive"] = "1 second"
        self.rig.create()
        self.server.execute(*_TABLES)
        self.define(*AMOUNTS, SPARE)
        self._write_configurations()
        for session in self._sessions:
            session.start()
        for name in ("capture", "tracker", "writers"):
            self.start(name)
        shapes = str(self.folder / "log_shapes")

        def are_registered() -> bool:
            self.raise_failure()
            found = RegistryTable(shapes).entries().entries if RegistryTable.exists(shapes) else {}
            return {*AMOUNTS, SPARE} <= {shape_id for _, kind, shape_id in found if kind == "shape"}

        wait_until(are_registered, "the shapes in the registry table", DEADLINE_S)

    def define(self, *shape_ids: str) -> None:
        self.rig.define(*(shape(each, f"public.{self.table_of(each)}") for each in shape_ids))

    @staticmethod
    def table_of(shape_id: str) -> str:
        return shape_id.removeprefix("spare ")

    def read(self, *shape_ids: str) -> ShapesRead | None:
        """The shapes as of the last cut; ``None`` as long as there is none."""
        self.raise_failure()
        try:
            return read_shapes(str(self.log), shape_ids, shapes=str(self.folder / "log_shapes"))
        except (CutMissingError, SnapshotMissingError):
            return None

    def await_read(self, *shape_ids: str, after: int = -1) -> ShapesRead:
        """The first read with a cut above ``after``."""
        found: list[ShapesRead] = []

        def is_past() -> bool:
            read = self.read(*shape_ids)
            if read is not None and read.lsn > after:
                found.append(read)
            return bool(found)

        wait_until(is_past, f"a cut above {after}", DEADLINE_S)
        return found[0]

    def stop_work(self) -> None:
        """End the sessions after their transactions; raises the error of one that has failed."""
        self._stop.set()
        for session in self._sessions:
            session.join()
        for failure in self._failures:
            raise failure

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311  a reproducible workload
        try:
            while not self._stop.wait(rng.uniform(0, _LONGEST_PAUSE_S)):
                run_in_transaction(self.server, _transaction(rng))
        except BaseException as error:  # noqa: BLE001  kept for the test
            self._failures.append(error)


def _transaction(rng: random.Random) -> list[str]:
    values = {"aid": rng.randrange(1, 101), "tid": rng.randrange(1, 11), "bid": rng.randrange(1, 4)}
    values["amount"] = rng.randrange(-5000, 5000)
    return [statement.format(**values) for statement in _TRANSACTION]


def sums(read: ShapesRead) -> Mapping[str, int]:
    """Of each shape, the sum of its amounts."""
    return {
        shape_id: sum(int(each) for each in found.rows[AMOUNTS[TpcbLoop.table_of(shape_id)]].to_pylist())
        for shape_id, found in read.shapes.items()
    }
