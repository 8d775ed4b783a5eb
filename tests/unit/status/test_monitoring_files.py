"""conf/monitoring: rules and dashboard name what the programs export, and the runbook has a section for each alert."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from flushtracker.status.http.metrics import metrics
from tests.support.sample_status import capturing, shapes_served, snapshotting, stalled_job, writing

_ROOT: Final = Path(__file__).parents[3]
_FOLDER: Final = _ROOT / "conf" / "monitoring"
_RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load((_FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
_DASHBOARD: Final[dict[str, Any]] = json.loads((_FOLDER / "grafana_dashboard.json").read_text())


def _exported() -> dict[str, set[str]]:
    """Sample name → its labels, as the programs of documents without anything unknown export them."""
    found: dict[str, set[str]] = {}
    programs = (stalled_job, writing, snapshotting, shapes_served, capturing)
    for status in (program(10**12) for program in programs):
        _, text = metrics(status, status.at_ms)
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


_EXPORTED: Final = _exported()


def _selected(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of ours in an expression, with the labels in braces behind it."""
    for name, matchers in re.findall(r"(flushtracker_\w+)(?:\{([^}]*)\})?", re.sub(r'job=~?"[^"]*"', "", expr)):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def _queries() -> list[str]:
    """Every query of the dashboard."""
    return [target["expr"] for panel in _DASHBOARD["panels"] for target in panel["targets"]]


def _unknown(exprs: list[str]) -> list[str]:
    """The metrics that no program exports, and the labels that they do not have; Prometheus adds job and instance."""
    return [
        f"{name}{sorted(labels)}"
        for expr in exprs
        for name, labels in _selected(expr)
        if name not in _EXPORTED or not labels <= _EXPORTED[name] | {"job", "instance"}
    ]


def test_every_alert_names_metrics_that_are_exported() -> None:
    """A rule over a metric that does not exist never fires."""
    assert len(_RULES) >= 10
    assert _unknown([rule["expr"] for rule in _RULES]) == []


def test_every_query_of_the_dashboard_names_a_metric_that_is_exported() -> None:
    """A panel over a metric that does not exist is empty."""
    assert len(_queries()) >= 30
    assert all("flushtracker_" in query for query in _queries())
    assert _unknown(_queries()) == []


def test_labels_in_texts_and_legends_are_exported() -> None:
    """``{{ $labels.x }}`` of an alert and ``{{x}}`` of a legend would be empty."""
    for rule in _RULES:
        labels = set().union(*(_EXPORTED[name] for name, _ in _selected(rule["expr"]))) | {"job", "instance"}
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels, rule["alert"]
    for panel in _DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = set().union(*(_EXPORTED[name] for name, _ in _selected(target["expr"]))) | {"job", "instance"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]


def test_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    """``runbook_url`` is the section's anchor, which is its title in lower case."""
    chapter = re.split(r"^## ", (_ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)
    (alerts,) = [text for text in chapter if text.startswith("Alerts\n")]
    titles = re.findall(r"^### (\w+)$", alerts, re.MULTILINE)
    assert sorted(titles) == sorted(rule["alert"] for rule in _RULES)
    for rule in _RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    for section in re.split(r"^### ", alerts, flags=re.MULTILINE)[1:]:
        parts = re.findall(r"^\*\*(It means|Look at|Do)\*\*", section, re.MULTILINE)
        assert parts == ["It means", "Look at", "Do"], section.splitlines()[0]


def test_operating_lists_the_alerts_for_a_call_at_night() -> None:
    page = (_ROOT / "docs" / "operating.md").read_text()
    (listed,) = re.findall(r"for a call at night:\s(.*?)\. Set", page, re.DOTALL)
    critical = [
        rule["alert"].removeprefix("Flushtracker") for rule in _RULES if rule["labels"]["severity"] == "critical"
    ]
    assert re.findall(r"\w+", listed.replace("Flushtracker", "").replace(" and ", " ")) == critical
