"""``flushtracker conformance`` on the example writer, which passes, and on faulty ones."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from flushtracker.conformance.judge import RULES
from tests.support.brokers import Broker
from tests.support.faulty_writers import AIMED, DUMP, PLAIN, READ, SLOW, WRITER, FaultyWriter
from tests.support.kafka_streams import config_file, streams_config, unreachable

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def kafka(broker: Broker, tmp_path: Path) -> Path:
    """A configuration whose topics the trial replaces with its own."""
    return config_file(streams_config(broker.bootstrap_servers, str), tmp_path / "kafka.yaml")


def conformance(
    writer: Path, data: Path, *options: str, dump: str = DUMP, read: str | None = READ
) -> subprocess.CompletedProcess[str]:
    commands = ["--writer", f"{sys.executable} {writer} {{config}} {{data}}/shapes.db", "--dump", dump]
    commands += [] if read is None else ["--read", read]
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
    done = conformance(WRITER, tmp_path, "--kills", "9", "--seeds", "2", "--timeout", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"15 kills, [\d,]+ events, \d+ s, last seed 2\n", done.stdout)
    rules = re.findall(r"^pass  (\w+)", done.stdout, re.MULTILINE)
    assert rules == [*RULES]
    assert "FAIL" not in done.stdout
    assert "\nNot tested: power failures" in done.stdout


@pytest.mark.parametrize("faulty", [*PLAIN, AIMED[0]], ids=lambda faulty: faulty.story)
def test_a_writer_that_breaks_a_rule_fails_by_that_rule(faulty: FaultyWriter, kafka: Path, tmp_path: Path) -> None:
    """And by no other, but for consequences."""
    _assert_found(faulty, tmp_path, "--kafka", str(kafka), "--kills", str(faulty.kills), "--seeds", "1")


@pytest.mark.soak
@pytest.mark.parametrize("faulty", [*AIMED, *SLOW], ids=lambda faulty: faulty.story)
def test_a_subtle_fault_is_found_by_the_default_kills(faulty: FaultyWriter, kafka: Path, tmp_path: Path) -> None:
    """Those that need a kill at a certain moment, or several timeouts."""
    _assert_found(faulty, tmp_path, "--kafka", str(kafka))


def _assert_found(faulty: FaultyWriter, folder: Path, *options: str) -> None:
    faulty.write(folder / "writer.py")
    done = conformance(folder / "writer.py", folder, "--timeout", "8", *options, read=faulty.read)
    failed = {*failed_rules(done.stdout)}
    assert done.returncode == 1, done.stdout + done.stderr
    assert {faulty.rule} <= failed <= {faulty.rule, *faulty.also}, done.stdout + done.stderr


def test_without_a_read_command_what_readers_see_is_not_tested(kafka: Path, tmp_path: Path) -> None:
    """The report says so."""
    done = conformance(WRITER, tmp_path, "--kafka", str(kafka), "--kills", "1", read=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n-     whole " in done.stdout
    assert "\n-: not tested without --read\n" in done.stdout


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
