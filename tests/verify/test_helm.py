"""The chart in deploy/helm, rendered by Helm: what a cluster gets, and what the programs read of it."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.go_programs import HELM, runs_here
from tests.support.manifests import Manifests

pytestmark = pytest.mark.skipif(not runs_here(), reason="Helm cannot be built for this machine")
_DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_CHART: Final = str(_DEPLOY / "helm" / "flushtracker")
_VALUES: Final = _DEPLOY / "kubernetes" / "values.yaml"


def _helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HELM.path), *arguments], capture_output=True, text=True, check=False, timeout=60, cwd=_DEPLOY.parent
    )


def _rendered(*arguments: str, release: str = "flushtracker") -> str:
    done = _helm("template", release, _CHART, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _file(folder: Path, values: dict[str, Any]) -> str:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def test_lint_has_no_complaint() -> None:
    """Also of the schema of the values."""
    done = _helm("lint", "--strict", _CHART, "--values", str(_VALUES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_plain_manifests_are_what_the_chart_renders() -> None:
    """By the command in their values: what is changed in one of them is changed in the other."""
    (line,) = (line for line in _VALUES.read_text().splitlines() if "helm template" in line)
    command, _, target = line.removeprefix("#").partition(" > ")
    assert _helm(*command.split()[1:]).stdout == (_DEPLOY.parent / target).read_text()


def test_documented_values_and_secret_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/deploying.md has them, and the Secret has each variable that a program gets."""
    text = (_DEPLOY.parent / "docs" / "deploying.md").read_text()
    before, _, after = text.partition("helm install flushtracker deploy/helm/flushtracker ")
    assert after
    (values,) = re.findall(r"```yaml\n(.*?)```", before[before.rindex("deploy/helm/flushtracker](") :], re.DOTALL)
    (tmp_path / "values.yaml").write_text(values)
    found = Manifests(_rendered("--values", str(tmp_path / "values.yaml")))
    assert found.check(tmp_path, monkeypatch)["capture"].postgres.slot == "app"
    given = set(re.findall(r"--from-literal=(\w+)=", before))
    variables = [found.variables(program).values() for program in found.programs]
    assert {each["key"] for all_of in variables for each in all_of if isinstance(each, dict)} == given


def test_other_values_reach_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four values as one writes them, another name, files of a Secret, and a section of one's own."""
    values = {
        "postgres": "postgresql://reader:${PGPASSWORD}@db.internal/app?sslrootcert=/etc/flushtracker-files/ca.pem",
        "kafka": {"bootstrap_servers": "one:9092,two:9092", "topic_prefix": "app"},
        "storage": "s3://bucket/app",
        "shapes": [{"id": "a", "table": "public.a"}, {"id": "b", "table": "public.b", "where": "state = 'open'"}],
        "config": {
            "capture": {"slot": "app"},
            "write": {"trigger": "1 minute"},
            "spark": {"spark.ui.enabled": "false"},
        },
        "image": "registry.internal/flushtracker:1",
        "files": "certificates",
        "resources": {"track": {"limits": {"memory": "8Gi"}}},
    }
    found = Manifests(_rendered("--values", _file(tmp_path, values), release="app"), "app")
    read = found.check(tmp_path, monkeypatch)
    assert read["capture"].postgres.slot == "app"
    assert read["capture"].kafka.bootstrap_servers == "one:9092,two:9092"
    assert read["capture"].kafka.topics.fragments == "app.fragments"
    assert (read["write"].trigger_ms, read["track"].trigger_ms) == (60_000, 10_000)
    assert read["track"].spark.settings["spark.ui.enabled"] == "false"
    assert found.container("track")["image"] == "registry.internal/flushtracker:1"
    resources = found.container("track")["resources"]
    assert (resources["limits"]["memory"], resources["requests"]["memory"]) == ("8Gi", "3Gi")
    (files,) = (volume["secret"] for volume in found.pod("serve")["volumes"] if "secret" in volume)
    assert files["secretName"] == "certificates"


@pytest.mark.parametrize(
    ("config", "programs"),
    [
        ({"write": False}, {"capture", "track", "serve"}),
        ({"write": False, "snapshot": {"trigger": "1 minute"}}, {"capture", "track", "snapshot", "serve"}),
        (
            {"write": {"snapshot": "manual"}, "snapshot": {"trigger": "1 minute"}, "serve": False},
            {"capture", "track", "write", "snapshot"},
        ),
        ({"write": {"snapshot": "manual"}}, {"capture", "track", "write", "serve"}),
        ({"snapshot": {"trigger": "1 minute"}}, {"capture", "track", "write", "serve"}),
    ],
)
def test_programs_are_those_of_the_file(
    config: dict[str, object], programs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which there are is said once, in the sections of ``flushtracker.yaml``."""
    done = _helm(
        "template", "flushtracker", _CHART, "--values", str(_VALUES), "--values", _file(tmp_path, {"config": config})
    )
    assert done.returncode == 0, done.stderr
    found = Manifests(done.stdout)
    assert found.programs == programs
    found.check(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"kafka": None}, "kafka"),
        ({"storge": "s3://bucket"}, "storge"),
        ({"config": {"trck": {}}}, "trck"),
        ({"config": {"status": False}}, "/config/status"),
        ({"variables": {"X": ["tracker"]}}, "tracker"),
    ],
)
def test_values_that_are_wrong_are_refused(values: dict[str, object], problem: str, tmp_path: Path) -> None:
    """Before anything reaches a cluster; what is wrong in a section, its program says."""
    done = _helm("template", "x", _CHART, "--values", str(_VALUES), "--values", _file(tmp_path, values))
    assert done.returncode == 1
    assert problem in done.stderr


def test_kafka_sinks_add_their_program(tmp_path: Path) -> None:
    """Where the configuration has the section, and only there."""
    topics = {"orders": {"topic": "app.public.orders", "groups": ["store"]}}
    with_sink = yaml.safe_load(_VALUES.read_text())
    with_sink["config"] = {**with_sink.get("config", {}), "sink": {"topics": topics}}
    found = Manifests(_rendered("--values", _file(tmp_path, with_sink)))
    assert found.programs == {*Manifests(_rendered("--values", str(_VALUES))).programs, "sink"}
