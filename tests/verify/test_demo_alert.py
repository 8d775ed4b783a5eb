"""A real Prometheus that scrapes the demo: the alert fires while a shape is held, and clears when it is removed."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from flushtracker.demo.services import Demo
from tests.support.browser import browser
from tests.support.processes import run_to_end
from tests.support.prometheus_server import PrometheusServer
from tests.support.seeds import every
from tests.support.status_program import get_json
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 240.0
_HELD: Final = "orders-held"
_SHAPE: Final = f"""\
shapes:
  - id: {_HELD}
    table: public.orders
    snapshot: false
    flush: {{bytes: 1073741824, interval: "1 day"}}
"""


@dataclass
class _RunningDemo:
    """The demo, with all its parts in their own processes, and a Prometheus that scrapes two of them."""

    folder: Path
    tracker: str
    prometheus: PrometheusServer

    def run(self, command: str, *arguments: str) -> None:
        """Run a command of flushtracker on the demo's capture."""
        whole = [sys.executable, "-m", "flushtracker", command, *arguments]
        done = run_to_end(
            [*whole, "--config", str(self.folder / "capture.yaml")], cwd=_ROOT, env=os.environ, timeout=_DEADLINE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def holders(self) -> list[str]:
        """The shapes that hold the slot, those that hold most first."""
        sources = get_json(f"{self.tracker}/status.json")["sources"]
        return [holder["shape"] for source in sources for holder in source["holders"]]


@pytest.fixture
def demo(postgres_folder: Path) -> Iterator[_RunningDemo]:
    said: list[str] = []
    with Demo(postgres_folder / "demo", said.append) as started:
        urls = {"flushtracker_track": started.status_url, "flushtracker_capture": started.capture_url}
        targets = {name: url.removeprefix("http://") for name, url in urls.items()}
        folder = postgres_folder / "prometheus"
        folder.mkdir()
        with PrometheusServer(folder, targets) as prometheus:
            running = _RunningDemo(postgres_folder / "demo", started.status_url, prometheus)
            wait_until(
                lambda: len(prometheus.query("flushtracker_ready == 1")) == 2, "job and capture are ready", _DEADLINE_S
            )
            wait_until(lambda: prometheus.query("flushtracker_ack_lsn"), "the first ack", _DEADLINE_S)
            yield running


@every(2, 1)
def test_alert_fires_while_a_shape_of_the_demo_is_held_and_clears_after_its_removal(
    demo: _RunningDemo, tmp_path: Path
) -> None:
    """The added shape's writer never flushes. Every view names it: the document, the metrics, the page."""
    added = tmp_path / "held.yaml"
    added.write_text(_SHAPE)
    # At the start everything waits for the snapshots.
    demo.prometheus.wait_for("FlushtrackerAckStuck", firing=False, timeout_s=_DEADLINE_S)
    demo.run("add-shape", str(added))
    wait_until(
        lambda: demo.holders()[:1] == [_HELD] and "FlushtrackerAckStuck" in demo.prometheus.firing(),
        f"the alert, while {_HELD} holds most",
        _DEADLINE_S,
    )
    most = 'topk(1, flushtracker_shape_held_bytes) and flushtracker_shape_held_bytes{shape="orders-held"} > 0'
    wait_until(lambda: demo.prometheus.query(most), f"{_HELD} holds most, by the metrics", _DEADLINE_S)
    with browser() as page:
        page.open(demo.tracker)
        page.wait_for_state("stalled")
        assert page.rows("holders")[0]["shape"] == _HELD
        page.save("demo_stalled")

        demo.run("remove-shape", _HELD, "--yes")
        demo.prometheus.wait_for("FlushtrackerAckStuck", firing=False, timeout_s=_DEADLINE_S)
        wait_until(lambda: _HELD not in demo.holders(), f"{_HELD} holds nothing", _DEADLINE_S)
        page.save("demo_released")
