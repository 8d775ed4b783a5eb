"""The story of the stale answer, told right: three shapes hold the slot, two of them flush, and one is left.

The ack does not move meanwhile, so the ack table has no new row, and the old one names a shape that is done. A real
tracking job, a real server with a slot, the command, the page in a real browser, and the metrics.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flushtracker.local.free_ports import free_port
from flushtracker.local.postgres import LocalPostgres
from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.wal.lsn import format_lsn, parse_lsn
from tests.support.browser import browser
from tests.support.config_file import change_config, write_config
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource
from tests.support.seeds import every
from tests.support.status_command import run_here
from tests.support.status_program import get_json
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 240.0
_SHAPES: Final = ("users", "orders", "orders-open")
_TOPICS: Final = ("fragments", "flushes", "shapes", "shape_changes")


@dataclass
class _Tracked:
    """A job on files, whose source is the slot of a server that runs."""

    job: JobFolder
    source: SampleSource
    url: str
    capture_config: Path
    process: GuardedProcess

    def source_status(self) -> dict[str, Any]:
        """What the job says of its one source; nothing before it has seen it."""
        if (failure := self.process.failure()) is not None:
            raise failure
        try:
            sources = get_json(f"{self.url}/status.json")["sources"]
        except OSError:
            return {}
        return dict(sources[0]) if sources else {}

    def batches(self) -> int:
        count: int = get_json(f"{self.url}/status.json")["batches"]
        return count

    def wait_until_pending(self, count: int) -> None:
        wait_until(lambda: self.source_status().get("pending_shapes") == count, f"{count} pending", _DEADLINE_S)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Sample → the shape that it is of, or nothing → value."""
        found: dict[str, dict[str, float]] = {}
        with urlopen(f"{self.url}/metrics", timeout=30) as response:  # noqa: S310  of this machine
            for family in text_string_to_metric_families(response.read().decode()):
                for sample in family.samples:
                    found.setdefault(sample.name, {})[sample.labels.get("shape", "")] = sample.value
        return found

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``flushtracker status``."""
        return run_here("status", "--config", str(self.capture_config), *arguments)


@pytest.fixture
def tracked(tmp_path: Path, postgres: LocalPostgres) -> Iterator[_Tracked]:
    job = JobFolder(tmp_path / "job")
    port = free_port()
    status = {"status": {"listen": f"127.0.0.1:{port}"}, "track": {"stall_grace": "3 seconds"}}
    job_config = change_config(job.config_file(trigger_ms=200), status)
    ((identifier, lsn),) = postgres.execute(
        "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        "SELECT system_identifier::text, pg_current_wal_lsn()::text FROM pg_control_system()",
    )
    settings = {
        "postgres": dict(postgres.options),
        "kafka": "127.0.0.1:9",
        "storage": str(job.root),
        "shapes": str(tmp_path / "shapes.yaml"),
        "capture": {"slot": "shapes", "publication": "shapes"},
        "status": {"listen": "127.0.0.1:0", "urls": {"track": f"http://127.0.0.1:{port}"}},
        **dict.fromkeys(("write", "serve"), False),
    }
    capture_config = write_config(tmp_path / "capture.yaml", settings)
    command = [sys.executable, "-m", "flushtracker", "track", "--config", str(job_config)]
    process = GuardedProcess("track", command, log=tmp_path / "track.log", env=os.environ)
    try:
        source = SampleSource(f"{identifier}/1/shapes", parse_lsn(lsn))
        yield _Tracked(job, source, f"http://127.0.0.1:{port}", capture_config, process)
    finally:
        process.kill()


@every(3, 1)
def test_shape_that_is_left_is_named_by_command_page_and_metrics(tracked: _Tracked) -> None:
    """Within two batches after the others have flushed. With the job dead, the command still has the slot's figures."""
    first = 0x10_0000_0000
    tracked.job.write([tracked.source.transaction(first, *_SHAPES)])
    tracked.wait_until_pending(3)
    tracked.job.write([tracked.source.transaction(first + 137, "orders-open")])
    wait_until(
        lambda: tracked.source_status()["last_seen_lsn"] == format_lsn(first + 137), "the second commit", _DEADLINE_S
    )

    with browser() as page:
        for left, shape in ((2, "users"), (1, "orders")):
            before = tracked.batches()
            tracked.job.write([tracked.source.flushed(shape, first)])
            tracked.wait_until_pending(left)
            assert tracked.batches() - before <= 2
        held = tracked.source_status()
        assert [holder["shape"] for holder in held["holders"]] == ["orders-open"]
        held_bytes = first + 137 - parse_lsn(held["ack_lsn"])  # The ack is right before the first commit.
        assert 137 < held_bytes < 145
        assert (held["holders"][0]["held_bytes"], held["holders"][0]["pending_transactions"]) == (held_bytes, 2)
        assert held["holders"][0]["ack_if_removed"] == format_lsn(first + 137)

        metrics = tracked.metrics()
        assert metrics["flushtracker_pending_shapes"] == {"": 1.0}
        assert metrics["flushtracker_shape_held_bytes"] == {"orders-open": float(held_bytes)}
        assert metrics["flushtracker_unacknowledged_bytes"][""] == held["unacknowledged_bytes"]

        asked = tracked.ask("--json")
        said = json.loads(asked.stdout)
        assert [holder["shape"] for holder in said["job"]["status"]["sources"][0]["holders"]] == ["orders-open"]
        text = tracked.ask().stdout
        (row,) = [line for line in text.splitlines() if line.startswith("orders-open")]
        assert row.split()[-1] == format_lsn(first + 137)
        assert f"{held_bytes} B" in row
        assert not [line for line in text.splitlines() if line.startswith(("users", "orders "))]

        page.open(f"{tracked.url}/")
        page.wait_for_state("stalled")
        assert [row["shape"] for row in page.rows("holders")] == ["orders-open"]
        assert page.values()["pending-shapes"] == "1"
        assert page.rows("holders")[0]["ack-if-removed"] == format_lsn(first + 137)
        page.save("stale_answer")

        tracked.job.write([tracked.source.flushed("orders-open", first + 137)])
        page.wait_for_state("idle")
        assert page.values()["ack-lsn"] == format_lsn(first + 137)

        tracked.process.kill()
        page.wait_for_state("silent")
        dead = tracked.ask()
        assert dead.returncode != 0
        assert "slot shapes" in dead.stdout
        assert "retained" in dead.stdout
        assert json.loads(tracked.ask("--json").stdout)["job"]["error"]
