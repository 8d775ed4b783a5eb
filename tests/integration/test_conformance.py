"""``flushtracker conformance`` on the example writer, which passes, and on versions of it that break one rule each."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.brokers import Broker
from tests.support.kafka_streams import config_file, streams_config, unreachable

ROOT: Final = Path(__file__).parents[2]
WRITER: Final = ROOT / "examples" / "sqlite_writer.py"
DUMP: Final = f"{sys.executable} {ROOT}/examples/dump_sqlite.py {{data}}/shapes.db"


@pytest.fixture
def kafka(broker: Broker, tmp_path: Path) -> Path:
    """A configuration whose topics the trial replaces with its own."""
    return config_file(streams_config(broker.bootstrap_servers, str), tmp_path / "kafka.yaml")


def conformance(writer: Path, data: Path, *options: str, dump: str = DUMP) -> subprocess.CompletedProcess[str]:
    commands = ["--writer", f"{sys.executable} {writer} {{config}} {{data}}/shapes.db", "--dump", dump]
    return subprocess.run(
        [sys.executable, "-m", "flushtracker", "conformance", *commands, "--data", str(data), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def failed_rules(output: str) -> list[str]:
    return re.findall(r"^FAIL  (\w+)", output, re.MULTILINE)


def test_the_example_writer_keeps_every_rule(tmp_path: Path) -> None:
    """On a broker that the command starts, as a newcomer would; the report has a line for each rule."""
    done = conformance(WRITER, tmp_path, "--kills", "10", "--timeout", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"14 kills, [\d,]+ events, \d+ s, seed 1\n", done.stdout)
    rules = re.findall(r"^pass  (\w+)", done.stdout, re.MULTILINE)
    assert rules == ["runs", "format", "durable", "once", "live", "again", "gap", "others", "heals", "removal"]
    assert "FAIL" not in done.stdout


LINES: Final = {
    "commit": "        db.commit()  # First durable,\n",
    "notify": "        notifier.flush()  # then said.\n",
    "start": "    notifier.start(cursors)\n",
    "gap": '    if shape in removed or position == "gap":\n',
}
CONSEQUENCES: Final = {"again": {"live", "others", "heals", "removal"}}
"""Rules that may fail with another: what a kill left unsaid a silent start never says."""
HOSTILE: Final[Sequence[tuple[str, dict[str, str], str]]] = [
    ("it notifies before the commit", {"commit": LINES["notify"], "notify": LINES["commit"]}, "durable"),
    (
        "a kill loses its buffer's tail",
        {"commit": f"        if int(__import__('time').time()) % 2:\n    {LINES['commit']}"},
        "durable",
    ),
    (
        "it takes a gap for nothing",
        {"gap": '    position = "next" if position == "gap" else position\n    if shape in removed:\n'},
        "gap",
    ),
    ("it starts in silence", {"start": ""}, "again"),
    ("it ends at a gap", {"gap": '    if position == "gap":\n        sys.exit(3)\n    if shape in removed:\n'}, "runs"),
]


@pytest.mark.parametrize(("story", "changes", "rule"), HOSTILE, ids=[story for story, _, _ in HOSTILE])
def test_a_writer_that_breaks_a_rule_fails_by_that_rule(
    story: str, changes: dict[str, str], rule: str, kafka: Path, tmp_path: Path
) -> None:
    """Each is the example with one line changed."""
    assert story
    text = WRITER.read_text()
    for name, line in LINES.items():
        assert text.count(line) == 1
        text = text.replace(line, f"<{name}>")
    for name, line in LINES.items():
        text = text.replace(f"<{name}>", changes.get(name, line))
    writer = tmp_path / "writer.py"
    writer.write_text(text)
    kills = "8" if rule == "durable" else "1"
    done = conformance(writer, tmp_path, "--kafka", str(kafka), "--kills", kills, "--timeout", "8")
    failed = [name for name in failed_rules(done.stdout) if name not in CONSEQUENCES.get(rule, ())]
    assert (done.returncode, failed) == (1, [rule]), done.stdout + done.stderr


def test_a_dump_that_fails_and_a_broker_that_is_away_are_errors_of_their_own(
    broker: Broker, kafka: Path, tmp_path: Path
) -> None:
    """Neither is a verdict about the writer."""
    done = conformance(WRITER, tmp_path, "--kafka", str(kafka), "--kills", "1", dump="false")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("the command false cannot be used: it exits with 1: no output\n")
    away = config_file(
        unreachable(streams_config(broker.bootstrap_servers, str), retry_timeout_ms=2_000), tmp_path / "away.yaml"
    )
    done = conformance(WRITER, tmp_path, "--kafka", str(away))
    assert (done.returncode, done.stdout) == (6, "")
