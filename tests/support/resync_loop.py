"""``ResyncLoop``: the whole loop with one shape that begins again, and what it takes to move it to another server."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flushtracker.delta.log.reader import read_shape
from flushtracker.errors import FlushtrackerError, ShapeEndedError, SnapshotMissingError
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.local.postgres import LocalPostgres
from tests.support.brokers import Broker
from tests.support.capture_rig import shape
from tests.support.log_follower import Follower
from tests.support.waiting import wait_until
from tests.support.whole_loop import INTERVALS, WholeLoop

SHAPE_ID: Final = "whole users"
DEADLINE_S: Final = 180


class ResyncLoop(WholeLoop):
    """The loop with one shape on a table that has rows, whose snapshots the writers' job takes.

    ``server`` may be of another version than the packaged one.
    """

    def __init__(self, folder: Path, broker: Broker, server: LocalPostgres | None = None) -> None:
        super().__init__(folder, flush="batch", write_unit="txn_fragment", server=server)
        self.shared_broker = broker

    def _start(self) -> None:
        self.writing["snapshot"] = "auto"
        self.writing["postgres"] = {"connection": dict(self.server.options), "publication": "shapes"}
        self.rig.settings["intervals"] = dict(INTERVALS)
        self.rig.create()
        self.server.execute(
            "CREATE TABLE public.users (id int PRIMARY KEY, n int NOT NULL)",
            "INSERT INTO public.users SELECT n, n FROM generate_series(1, 50) AS n",
        )
        self.rig.define(shape(SHAPE_ID))
        self._write_configurations()
        for name in ("capture", "tracker", "writers"):
            self.start(name)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> bool:
            self.raise_failure()
            return bool(condition())

        wait_until(holds, what, DEADLINE_S)

    def expected(self) -> list[tuple[str, str]]:
        return [(str(key), str(n)) for key, n in self.server.execute("SELECT id, n FROM public.users")]

    def has_followed(self, follower: Follower) -> bool:
        """Poll, as long as the shape has ended or waits for its snapshot; whether it has the query's rows."""
        try:
            follower.poll()
        except (ShapeEndedError, SnapshotMissingError):
            return False
        rows = sorted((row["id"] or "", row["n"] or "") for row in follower.table.values())
        return rows == sorted(self.expected())

    def stop_capture(self) -> None:
        """Kill it, and wait until the server has missed it."""
        self._processes["capture"].kill()
        active = "SELECT 1 FROM pg_replication_slots WHERE active"
        wait_until(lambda: not self.server.execute(active), "the slot is free", DEADLINE_S)

    def begin_epoch(self, *arguments: str) -> None:
        """Start capture once so that it begins a new epoch, until it has registered the shape, and then as before."""
        epochs = self.sources()
        self._processes["capture"].kill()
        process = self.rig.start_process("flushtracker", "capture", *arguments)
        wait_until(lambda: process.poll() is not None or self.sources() > epochs, "the new source", DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (self.rig.folder / "capture.log").read_text()[-2000:]
        self.start("capture")

    def sources(self) -> set[str]:
        """Those under which the shape is registered."""
        entries = [parse_registry_entry(value) for value in self.rig.values("shapes")]
        return {entry.source for entry in entries if isinstance(entry, ShapeEntry)}

    def use(self, server: LocalPostgres) -> None:
        """Let all programs connect to another server, once they are started again."""
        self.server = self.rig.server = server
        self.rig.settings["postgres"]["connection"] = dict(server.options)
        self.writing["postgres"]["connection"] = dict(server.options)
        assert self.rig.config
        self._write_configurations()

    def is_current(self) -> bool:
        """Whether the shape's rows are those of its query."""
        expected = self.expected()
        try:
            rows = read_shape(str(self.log), SHAPE_ID, shapes=str(self.folder / "log_shapes")).rows
        except FlushtrackerError:
            return False
        return sorted((row["id"], row["n"]) for row in rows.to_pylist()) == sorted(expected)
