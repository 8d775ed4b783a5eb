"""A real Prometheus on this machine: it scrapes every second, and has the shipped rules at sixty times their speed."""

import json
import re
import subprocess
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote
from urllib.request import urlopen

import yaml

from flushtracker.local.free_ports import free_port
from tests.support.status_program import get_json
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_MONITORING: Final = _ROOT / "conf" / "monitoring"
_DEADLINE_S: Final = 60.0
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600}
_FASTER: Final = 60
_LEAST_S: Final = 4
"""A busy machine may miss a scrape."""
_THRESHOLDS_FASTER: Final = 30


def faster_rules() -> str:
    """The shipped rules with each duration divided by 60, and each threshold in seconds by 30; otherwise unchanged."""
    document = yaml.safe_load((_MONITORING / "alerts.yaml").read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = _faster(rule["for"])
            expr = re.sub(r"(?<=\[)\d+[smh](?=\])|(?<=offset )\d+[smh]", lambda found: _faster(found[0]), rule["expr"])
            rule["expr"] = re.sub(
                r"(_seconds(?:{[^}]*})? > )(\d+)",
                lambda found: f"{found[1]}{int(found[2]) // _THRESHOLDS_FASTER}",
                expr,
            )
    return yaml.safe_dump(document)


def _faster(duration: str) -> str:
    return f"{max(int(duration[:-1]) * _UNITS_S[duration[-1]] // _FASTER, _LEAST_S)}s"


class PrometheusServer:
    """A context manager. ``targets``: the name of each scrape job → host and port."""

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        self._folder = folder
        self._targets = targets
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"}

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts, also those that are pending."""
        found: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return found

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of this expression now."""
        found: list[dict[str, Any]] = self._get(f"query?query={quote(expr)}")["result"]
        return found

    def wait_for(self, alert: str, *, firing: bool, timeout_s: float = _DEADLINE_S) -> None:
        """Wait until the alert fires, or fires no more."""
        what = f"{alert} {'fires' if firing else 'is clear'}"
        wait_until(lambda: (alert in self.firing()) is firing, what, timeout_s, pause_s=0.2)

    def _get(self, path: str) -> Any:
        return get_json(f"http://127.0.0.1:{self._port}/api/v1/{path}")["data"]

    def __enter__(self) -> "PrometheusServer":
        (self._folder / "alerts.yaml").write_text(faster_rules())
        scrapes = [
            {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in self._targets.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": scrapes,
        }
        (self._folder / "prometheus.yaml").write_text(json.dumps(config))
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._is_ready, "Prometheus is ready", _DEADLINE_S)
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=_DEADLINE_S).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_DEADLINE_S)
