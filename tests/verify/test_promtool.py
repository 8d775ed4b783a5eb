"""promtool, of Prometheus' own project, on what is shipped and on what the programs export."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

import pytest

from flushtracker.status.program_status import ProgramStatus
from tests.support.processes import run_to_end
from tests.support.prometheus_server import faster_rules
from tests.support.sample_status import capturing, idle_job, snapshotting, stalled_job, writing
from tests.support.status_program import StatusProgram

_FOLDER: Final = Path(__file__).parents[2] / "conf" / "monitoring"
_NOW_MS: Final = 1_790_000_000_000


def _promtool(*arguments: str, text: bytes = b"") -> None:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert not done.stderr, done.stderr.decode()


@pytest.mark.parametrize("sample", [idle_job, stalled_job, writing, snapshotting, capturing])
def test_metrics_follow_the_conventions(tmp_path: Path, sample: Callable[[int], ProgramStatus]) -> None:
    """Names, units, types and help texts, of what a scrape gets."""
    with StatusProgram(tmp_path, "program", sample(_NOW_MS)) as program:
        request = Request(f"{program.url}/metrics", headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310
        with urlopen(request, timeout=30) as response:  # noqa: S310
            text = response.read()
    assert text.count(b"\nflushtracker_") > 10
    _promtool("check", "metrics", text=text)


def test_rules_are_valid() -> None:
    _promtool("check", "rules", str(_FOLDER / "alerts.yaml"))


def test_each_alert_fires_and_clears_and_none_fires_when_idle() -> None:
    """The played histories of ``alerts_test.yaml``."""
    done = run_to_end(["promtool", "test", "rules", "alerts_test.yaml"], cwd=_FOLDER, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_examples_of_the_configuration_are_valid(tmp_path: Path) -> None:
    """Debian's build cannot discover targets on Kubernetes, so that line is checked as one with a fixed target."""
    _promtool("check", "config", str(_FOLDER / "prometheus.yaml"))
    text = (_FOLDER / "prometheus_kubernetes.yaml").read_text()
    fixed = text.replace("kubernetes_sd_configs: [{role: pod}]", 'static_configs: [{targets: ["127.0.0.1:9464"]}]')
    assert fixed != text
    (tmp_path / "prometheus.yaml").write_text(fixed)
    (tmp_path / "alerts.yaml").write_text((_FOLDER / "alerts.yaml").read_text())
    _promtool("check", "config", str(tmp_path / "prometheus.yaml"))


def test_rules_of_the_other_tests_are_the_shipped_ones_but_faster(tmp_path: Path) -> None:
    """Five minutes become five seconds."""
    text = faster_rules()
    assert "flushtracker_ack_age_seconds > 20\n" in text
    assert "[5s]" in text
    assert "offset 60s" in text
    assert "m]" not in text
    (tmp_path / "alerts.yaml").write_text(text)
    _promtool("check", "rules", str(tmp_path / "alerts.yaml"))
