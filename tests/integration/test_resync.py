"""Shapes begin again, with the real server, broker, capture, tracker and writers, and their followers just continue."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.delta.log.reader import read_shape, read_shape_log
from flushtracker.errors import FlushtrackerError, ShapeEndedError, SnapshotMissingError
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_rig import shape
from tests.support.log_follower import Follower
from tests.support.waiting import wait_until
from tests.support.whole_loop import WholeLoop

_DEADLINE_S = 180
_ID = "whole users"


class ResyncLoop(WholeLoop):
    """The loop with one shape on a table that has rows, whose snapshots the writers' job takes."""

    def _start(self) -> None:
        self.writing["snapshot"] = "auto"
        self.writing["postgres"] = {"connection": dict(self.server.options), "publication": "shapes"}
        self.rig.settings["intervals"]["keepalive"] = "1 second"
        self.rig.create()
        self.server.execute(
            "CREATE TABLE public.users (id int PRIMARY KEY, n int NOT NULL)",
            "INSERT INTO public.users SELECT n, n FROM generate_series(1, 50) AS n",
        )
        self.rig.define(shape(_ID))
        self._write_configurations()
        for name in ("capture", "tracker", "writers"):
            self._start_process(name)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> bool:
            self.raise_failure()
            return bool(condition())

        wait_until(holds, what, _DEADLINE_S)

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

    def is_current(self) -> bool:
        """Whether the shape's rows are those of its query."""
        expected = self.expected()
        try:
            rows = read_shape(str(self.log), _ID, shapes=str(self.folder / "log_shapes")).rows
        except FlushtrackerError:
            return False
        return sorted((row["id"], row["n"]) for row in rows.to_pylist()) == sorted(expected)


def test_a_shape_that_a_schema_change_has_ended_begins_again_under_its_id(
    postgres_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Capture and the writers are killed meanwhile. The rows are those of the query, and the slot goes on.

    What was changed while the shape had ended is in its new snapshot, and in no event: a follower gets it with the
    difference, and continues. An older offset is still what was true then.
    """
    loop = ResyncLoop(postgres_folder, flush="batch", write_unit="txn_fragment")
    with loop:
        loop.wait(loop.is_current, "the first snapshot")
        loop.server.execute("UPDATE public.users SET n = -n WHERE id % 5 = 0")
        loop.wait(loop.is_current, "the first changes")
        follower = Follower(str(loop.log), shape_id=_ID)
        assert loop.has_followed(follower)
        then, rows_then = LogOffset.last_of(follower.poll().tx_offset), loop.expected()
        loop.server.execute("ALTER TABLE public.users ALTER COLUMN n TYPE bigint")
        loop.server.execute("DELETE FROM public.users WHERE id % 7 = 0")
        loop.wait(lambda: loop.rig.registry()[_ID].removed_at, "the end of the shape")
        assert main(["resync", _ID, "--config", str(loop.rig.config_file), "--yes", "--no-wait"]) == 0
        assert f"shape {_ID} has incarnation 2" in capsys.readouterr().out
        loop.kill("capture")
        loop.wait(lambda: loop.rig.registry()[_ID].removed_at is None, "its next incarnation")
        assert loop.rig.registry()[_ID].definition.incarnation == 2
        loop.kill("writers")
        loop.server.execute("INSERT INTO public.users VALUES (1000, 1)")
        loop.wait(loop.is_current, "the new snapshot, and what follows it")
        loop.wait(lambda: loop.has_followed(follower), "the follower")
        assert (follower.restarts, len(follower.table)) == (0, len(loop.expected()))
        before = read_shape(str(loop.log), _ID, then).rows.to_pylist()
        assert sorted((row["id"], row["n"]) for row in before) == sorted(rows_then)
        later = read_shape_log(str(loop.log), _ID).position
        lsn = loop.rig.commit_lsn("INSERT INTO public.users VALUES (1001, 1)")
        loop.wait(loop.is_current, "a later change")
        assert [row["key"] for row in read_shape_log(str(loop.log), _ID, later).rows.to_pylist() if row["key"]] == [
            '"public"."users"/"1001"'
        ]
        loop.wait(lambda: loop.rig.confirmed_lsn() > lsn, "the slot past it")
