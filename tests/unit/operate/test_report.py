"""The report on an ack table: what it computes, prints, draws and refuses. It needs no Java."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.event_files import StreamWriter
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.operate.report.figures import HeldBack, held_back, last_published_commit
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.changes import Commit
from flushtracker.wal.log_offset import LogOffset
from tests.support.config_file import write_config

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)


def ack(batch_id: int, ack_lsn: int, last_seen_lsn: int, shape: str | None = None, seconds: float = 0.0) -> Ack:
    """An ack ``seconds`` after noon, blocked since noon."""
    since = None if shape is None else NOON
    return Ack(
        batch_id, ack_lsn, last_seen_lsn, int(shape is not None), shape, since, NOON + timedelta(seconds=seconds)
    )


ACKS = (
    ack(0, 0x1000, 0x2000, "slow", 1),
    ack(3, 0x1800, 0x4000, "quick", 4),
    ack(4, 0x3000, 0x5000, "slow", 5),
    ack(9, 0x5000, 0x5000, None, 10),
)


@dataclass(frozen=True)
class Project:
    """A folder with a configuration, an ack table and fragments, on which the report runs."""

    root: Path

    def ack_table(self) -> AckTable:
        """The table as a driver that has just started opens it."""
        table = AckTable(str(self.root / "acks"))
        table.fence_others()
        return table

    def write_acks(self, acks: Iterable[Ack], source: str = "s") -> None:
        table = self.ack_table()
        for row in acks:
            table.append(
                AckRow(
                    source=source,
                    batch_id=row.batch_id,
                    ack_lsn=row.ack_lsn,
                    last_seen_lsn=row.last_seen_lsn,
                    pending_shapes=row.pending_shapes,
                    blocking_shape=row.blocking_shape,
                    blocking_since=row.blocking_since,
                    acked_at=row.acked_at,
                )
            )

    def write_fragments(self, *lsns: int, source: str = "s", commit: bool = True) -> None:
        StreamWriter(self.root / "fragments").publish(
            FragmentEvent(
                source,
                xid=7,
                lsn=lsn,
                follows=LogOffset.just_before(lsn),
                last_log_offset=LogOffset(lsn, 0),
                start=False,
                has_begin=True,
                commit=Commit("2026-11-21T01:02:03.456789Z", lsn + 24) if commit else None,
            ).to_json()
            for lsn in lsns
        )

    def report(self, *options: str, plot: Path | None = None) -> int:
        settings = {"files": str(self.root), "storage": str(self.root), "status": False}
        config = write_config(self.root / "config.yaml", settings)
        return main(["report", "--config", str(config), "--plot", str(plot or self.plot), *options])

    @property
    def plot(self) -> Path:
        return self.root / "plots" / "report.png"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The report prints to a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return Project(tmp_path)


# What it prints


def test_the_report_shows_how_the_ack_rose_and_that_it_is_complete(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each ack, one for each shape that held it back, the verdict, and a plot."""
    project.write_acks(ACKS)
    project.write_fragments(0x2000, 0x4000, 0x5000)
    assert project.report() == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "How the ack of s advanced: 4 acks",
        " batch  ack LSN  last seen      lag  pending  held back by    for",
        "──────────────────────────────────────────────────────────────────",
        "     0   0/1000     0/2000  4.10 kB        1  slow          1.0 s",
        "     3   0/1800     0/4000  10.2 kB        1  quick         4.0 s",
        "     4   0/3000     0/5000  8.19 kB        1  slow          5.0 s",
        *("     9   0/5000     0/5000      0 B        0  –", "", "Which shape held it back, as of each ack"),
        *(" shape  acks  batches   time  most WAL waiting", "───────────────────────────────────────────────"),
        *(" slow      2        8  8.0 s           12.3 kB", " quick     1        1  1.0 s           14.3 kB"),
        *("", "final ack 0/5000 of 2026-11-21 12:00:10 UTC = last commit known: everything is acknowledged"),
        f"plot: {project.plot}",
    ]
    assert project.plot.read_bytes().startswith(b"\x89PNG")


def test_an_ack_short_of_the_last_commit_is_an_error(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The error has both LSNs, the bytes between them, and what blocked the ack then, not what does now."""
    project.write_acks(ACKS[:3])
    project.write_fragments(0x2000, 0x5000)
    assert project.report() == 1
    assert (
        "error: final ack 0/3000 of 2026-11-21 12:00:05 UTC is 8.19 kB behind the last commit known, 0/5000, "
        "blocked by slow then; for now, ask flushtracker status\n"
    ) in capsys.readouterr().out


def test_a_commit_that_the_job_never_saw_counts_too(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The ack is compared with the fragments, not only with what the job has seen."""
    project.write_acks(ACKS)
    project.write_fragments(0x5000, 0x9000)
    assert project.report() == 1
    assert (
        "is 16.4 kB behind the last commit known, 0/9000; for now, ask flushtracker status\n" in capsys.readouterr().out
    )


# What it computes


def test_a_shape_holds_the_ack_back_until_the_next_ack() -> None:
    """In batches, in time and in WAL, the longest first; after the last ack nothing counts."""
    assert held_back(ACKS) == (
        HeldBack("slow", acks=2, batches=8, seconds=8.0, max_lag_bytes=0x3000),
        HeldBack("quick", acks=1, batches=1, seconds=1.0, max_lag_bytes=0x3800),
    )
    assert held_back((ack(5, 0x1000, 0x2000, "slow"),)) == (HeldBack("slow", acks=1, max_lag_bytes=0x1000),)


def test_the_last_published_commit_is_of_this_source_and_committed(project: Project) -> None:
    """Other sources and open transactions do not count, even if they are in newer files."""
    project.write_fragments(0x1000, 0x2000)
    project.write_fragments(0x3000, commit=False)
    project.write_fragments(0x4000, source="other")
    fragments = str(project.root / "fragments")
    assert last_published_commit(fragments, "s") == 0x2000
    assert last_published_commit(fragments, "none") is None
    assert last_published_commit("s3://bucket/fragments", "s") is None
    assert last_published_commit(str(project.root / "missing"), "s") is None


# The plot


# Refusals
