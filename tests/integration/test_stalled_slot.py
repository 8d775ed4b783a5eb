"""Capture's own status, eviction, and the commands that edit its shapes file, with a real server and a real broker.

The tracking job is a stand-in that serves a document; its acks are in a real ack table.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from flushtracker.capture.slot_poller import SlotPoller
from flushtracker.cli import main
from flushtracker.config.yaml_tree import read_files
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from tests.support.capture_rig import INSERT_USER, CaptureRig, RunningCapture, shape
from tests.support.status_pages import job_page
from tests.support.waiting import wait_until

DEADLINE_S = 20.0


@dataclass
class Job:
    """What the stand-in says: it has seen all that capture has published, and ``holders`` hold since ``held_from``."""

    since_ms: int
    capture: RunningCapture | None = None
    ack_lsn: int | None = None
    held_from: int = 0
    holders: list[str] = field(default_factory=list)
    batches: int = 0

    def status(self) -> JobStatus:
        self.batches += 1
        now_ms = int(time.time() * 1000)
        if self.capture is None or self.capture.loop.source is None:
            return JobStatus(now_ms, self.since_ms, is_ready=False)
        seen = self.capture.loop.status().published_lsn or 0
        ack_lsn = self.ack_lsn or 0
        holders = tuple(
            Holder(name, self.since_ms - 60_000 * n, 1, seen - self.held_from, ack_lsn)
            for n, name in enumerate(self.holders)
        )
        source = SourceStatus(self.capture.loop.source, self.ack_lsn, seen, len(holders), 0, None, holders)
        return JobStatus(
            now_ms, self.since_ms, is_ready=True, sources=(source,), batch_id=self.batches, batch_at_ms=now_ms
        )


@pytest.fixture
def job() -> Iterator[tuple[Job, str]]:
    """Everything is pending since an hour ago."""
    said = Job(since_ms=int(time.time() * 1000) - 3_600_000)
    with job_page(said.status) as url:
        yield said, url


def write_megabytes(rig: CaptureRig) -> None:
    """A transaction for the shapes, and as much other WAL as fills a file."""
    rig.server.execute(INSERT_USER, "SELECT pg_switch_wal()")


def test_a_silent_writers_shape_is_evicted_and_the_slot_advances_but_not_at_an_idle_server(
    rig: CaptureRig, job: tuple[Job, str]
) -> None:
    """At the idle server the same shape is pending for an hour, and holds 32 MB, and stays."""
    said, url = job
    rig.settings["status"] = {"listen": "127.0.0.1:0", "urls": {"track": url}}
    rig.settings |= {"write": False, "serve": False}
    rig.settings["capture"]["evict"] = {"remove_after": "1 second", "grace": "500 ms"}
    rig.define(shape("users"), shape("dead"))
    said.capture = capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    said.ack_lsn = said.held_from = rig.acknowledge_all()
    for _ in range(2):
        write_megabytes(rig)
    rig.execute_and_wait(INSERT_USER)
    said.holders = ["dead", "users"]
    written = capture.loop.status().slot
    assert written is not None
    batches = said.batches
    rig.wait(lambda: said.batches > batches + 12, "looks at the job, over more than the grace period")
    idle = capture.loop.status()
    assert (idle.evictions, idle.shapes) == ((), 2)
    assert (idle.publish_queue_bytes, idle.changes_matched, idle.reconnects) == (0, 4, 0)

    def is_evicted() -> bool:
        write_megabytes(rig)
        return bool(capture.loop.status().evictions)

    rig.wait(is_evicted, "the eviction once the server is written to")
    (eviction,) = capture.loop.status().evictions
    entry = rig.registry()["dead"]
    assert (eviction.shape_id, eviction.reason) == ("dead", entry.ended_because)
    assert entry.evicted_at_ms == eviction.at_ms
    assert eviction.reason.startswith("its writer made no progress for 1.0 h, and it held ")
    assert eviction.reason.endswith("over capture.evict.remove_after")
    rig.wait(lambda: "dead" in rig.removals(), "the removal, by which the tracker lets go of the shape")
    assert rig.removals()["dead"].offset == entry.removed_at
    before = capture.loop.status().slot
    said.holders = []
    said.ack_lsn = rig.acknowledge_all()

    def has_advanced() -> bool:
        slot = capture.loop.status().slot
        assert slot is not None
        assert before is not None
        return (slot.confirmed_lsn or 0) > (before.confirmed_lsn or 0)

    rig.wait(has_advanced, "the slot's own figures")
    rig.execute_and_wait(INSERT_USER)
    capture.stop()
    assert rig.registry()["users"].removed_at is None
    assert capture.loop.status().is_connected is False
    # The file still has the shape, and a new process remembers when and why it went.
    again = rig.start()
    rig.wait(lambda: again.loop.status().shapes == 1, "the next process")
    assert again.loop.status().evictions == (eviction,)
    again.stop()


def test_the_slot_is_watched_again_after_the_server_has_ended_the_connection(postgres: LocalPostgres) -> None:
    """What was known stays, with its time; capture itself is not running at all."""
    postgres.execute("SELECT pg_create_logical_replication_slot('watched', 'pgoutput')")
    with SlotPoller({**postgres.options, "application_name": "watch"}, "watched", interval_s=0.05) as poller:
        wait_until(lambda: poller.last is not None, "the first look", DEADLINE_S)
        first = poller.last
        assert first is not None
        assert (first.is_active, first.wal_status) == (False, "reserved")
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'watch'")
        postgres.execute("SELECT pg_switch_wal()")
        wait_until(lambda: poller.last is not None and poller.last.written_lsn > first.written_lsn, "more", DEADLINE_S)
    postgres.execute("SELECT pg_drop_replication_slot('watched')")


def flushtracker(rig: CaptureRig, *arguments: str) -> int:
    assert rig.config
    return main([*arguments, "--config", str(rig.config_file)])


def watch_folder(rig: CaptureRig, *shapes: dict[str, Any]) -> Path:
    """Capture reads these shapes from a folder, each from a file of its own; returns the folder."""
    folder = rig.shapes_file.with_name("shapes.d")
    folder.mkdir()
    for each in shapes:
        (folder / f"{each['id']}.yaml").write_text(yaml.safe_dump(each))
    rig.settings["shapes"] = str(folder)
    return folder


def test_shapes_are_added_and_removed_while_capture_runs(
    rig: CaptureRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command says when capture has it; and when it has not, because nothing runs."""
    folder = watch_folder(rig, shape("users"))
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    new = tmp_path / "new.yaml"
    new.write_text("id: late   # from now on\ntable: public.users\n")
    assert flushtracker(rig, "add-shape", str(new)) == 0
    assert capsys.readouterr().out == f"added shape late as {folder}/late.yaml\ncapture has registered it\n"
    assert rig.registry()["late"].removed_at is None
    assert flushtracker(rig, "remove-shape", "late", "--yes") == 0
    assert "capture has removed the shape" in capsys.readouterr().out
    assert rig.registry()["late"].removed_at is not None
    assert flushtracker(rig, "add-shape", str(new)) == 2
    assert "shape 'late' was removed or ended at " in capsys.readouterr().err
    assert flushtracker(rig, "remove-shape", "users", "--yes") == 0
    assert "without users more than half of the live shapes are missing" in capsys.readouterr().out
    assert rig.registry()["users"].ended_because is None
    assert read_shapes_file(folder).definitions == ()
    capture.stop()
    new.write_text("shapes: [{id: third, table: public.users}]")
    assert flushtracker(rig, "add-shape", str(new), "--timeout", "1") == 1
    assert "capture has not registered it within 1 s. Does it run" in capsys.readouterr().err
    assert flushtracker(rig, "remove-shape", "third", "--yes") == 0
    assert "capture had not registered it" in capsys.readouterr().out


def test_a_shape_that_does_not_fit_its_table_is_not_written_and_if_it_is_there_stops_nothing(
    rig: CaptureRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It got into the file, and then neither a removal nor a restart worked. Capture takes it once it fits."""
    bad = {"id": "bad", "table": "public.users", "where": "id > 0", "columns": ["id", "regoin"]}
    folder = watch_folder(rig, shape("users"), shape("other"), shape("more"), bad)
    capture = rig.start()
    rig.execute_and_wait(INSERT_USER)
    assert rig.registry().keys() == {"users", "other", "more"}
    status = capture.loop.status()
    assert [refused.shape_id for refused in status.refused] == ["bad"]
    assert status.refused[0].reason.endswith("it has id, region; did you mean region?")
    files = read_files(folder)
    new = tmp_path / "new.yaml"
    new.write_text("id: new\ntable: public.users\nwhere: nme = 5\n")
    assert flushtracker(rig, "add-shape", str(new)) == 2
    assert 'where reads column "nme", which the table does not have' in capsys.readouterr().err
    assert read_files(folder) == files
    assert flushtracker(rig, "remove-shape", "other", "--yes") == 0
    assert "capture has removed the shape" in capsys.readouterr().out
    rig.server.execute("ALTER TABLE users ADD regoin text")
    rig.wait(lambda: "bad" in rig.registry(), "the shape that fits now")
    rig.wait(lambda: capture.loop.status().shapes_refused == 0, "its status")
    capture.stop()
    assert {each for each, entry in rig.registry().items() if entry.removed_at is None} == {"users", "more", "bad"}
