"""``flushtracker conformance`` on the example writer, which passes, and on faulty ones."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from flushtracker.trials.conformance.judge import RULES
from tests.support.brokers import Broker
from tests.support.faulty_writers import AIMED, DUMP, PLAIN, READ, ROWS, SLOW, UNSYNCED, WRITER, FaultyWriter
from tests.support.kafka_streams import config_file, streams_config, unreachable
from tests.support.processes import run_to_end
from tests.support.seeds import every, in_turn

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def kafka(broker: Broker, tmp_path: Path) -> Path:
    """A configuration whose topics the trial replaces with its own."""
    return config_file(streams_config(broker.bootstrap_servers, str), tmp_path / "kafka.yaml")


def conformance(
    writer: Path, data: Path, *options: str, dump: str = DUMP, read: str | None = READ, rows: str | None = None
) -> subprocess.CompletedProcess[str]:
    commands = ["--writer", f"{sys.executable} {writer} {{config}} {{data}}/shapes.db {{writer}}", "--dump", dump]
    commands += [] if read is None else ["--read", read]
    commands += [] if rows is None else ["--rows", rows]
    return run_to_end(
        [sys.executable, "-m", "flushtracker", "conformance", *commands, "--data", str(data), *options], cwd=ROOT
    )


def failed_rules(output: str) -> list[str]:
    return re.findall(r"^FAIL  (\w+)", output, re.MULTILINE)


@every(3, 2)
def test_the_example_writer_keeps_every_rule(tmp_path: Path) -> None:
    """On a broker that the command starts, as a newcomer would; the report has a line for each rule.

    Two of three kills are power failures.
    """
    done = conformance(WRITER, tmp_path, "--power-loss", "--kills", "6", "--seeds", "1", "--timeout", "30", rows=ROWS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"11 kills, [\d,]+ events, \d+ s, last seed 1\n", done.stdout)
    rules = re.findall(r"^pass  (\w+)", done.stdout, re.MULTILINE)
    assert rules == [*RULES]
    assert "FAIL" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Not tested: lost disks")


@pytest.mark.parametrize("faulty", in_turn([*PLAIN, AIMED[0]], 2))
def test_a_writer_that_breaks_a_rule_fails_by_that_rule(faulty: FaultyWriter, kafka: Path, tmp_path: Path) -> None:
    """And by no other, but for consequences."""
    _assert_found(faulty, tmp_path, "--kafka", str(kafka), "--kills", str(faulty.kills), "--seeds", "1")


@pytest.mark.parametrize("faulty", in_turn(UNSYNCED))
def test_a_writer_that_does_not_sync_fails_by_a_power_failure(
    faulty: FaultyWriter, kafka: Path, tmp_path: Path
) -> None:
    """The first one finds it; no kill can."""
    _assert_found(faulty, tmp_path, "--kafka", str(kafka), "--power-loss", "--kills", "1", "--seeds", "1")


@pytest.mark.soak
@pytest.mark.parametrize("faulty", [*AIMED, *SLOW], ids=lambda faulty: faulty.story)
def test_a_subtle_fault_is_found_by_the_default_kills(faulty: FaultyWriter, kafka: Path, tmp_path: Path) -> None:
    """Those that need a kill at a certain moment, or several timeouts."""
    _assert_found(faulty, tmp_path, "--kafka", str(kafka))


def _assert_found(faulty: FaultyWriter, folder: Path, *options: str) -> None:
    faulty.write(folder / "writer.py")
    # A shorter one fails others, too, on a machine with much to do.
    timeout_s = 10 if faulty.is_silent else 100
    writer, timeout = folder / "writer.py", ["--timeout", str(timeout_s)]
    done = conformance(writer, folder, *timeout, *options, read=faulty.read, rows=faulty.rows)
    failed = {*failed_rules(done.stdout)}
    assert done.returncode == 1, done.stdout + done.stderr
    assert {faulty.rule} <= failed <= {faulty.rule, *faulty.also}, done.stdout + done.stderr


def test_what_is_not_tested_without_an_option_is_said(kafka: Path, tmp_path: Path) -> None:
    """What readers see, and what a power failure leaves: a writer that never syncs passes."""
    UNSYNCED[0].write(tmp_path / "writer.py")
    done = conformance(tmp_path / "writer.py", tmp_path, "--kafka", str(kafka), "--kills", "1", read=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^-     (\w+)", done.stdout, re.MULTILINE) == ["power", "whole", "rows", "snapshot"]
    assert (
        "\n-: power is not tested: a kill loses nothing that was written without fsync; --power-loss does\n"
        "-: whole is not tested: needs --read\n"
    ) in done.stdout


def test_a_writer_whose_syncs_cannot_be_followed_is_not_judged(kafka: Path, tmp_path: Path) -> None:
    """Nor is one that stores its data elsewhere; neither is a verdict."""
    conforming = WRITER.read_text()
    synced_memory = "import mmap, os\nmmap.mmap(os.open(__file__, os.O_RDWR), 1).flush()\n"
    for change, reason in (
        (f"{synced_memory}{conforming}", "syncs memory (msync)"),
        (conforming.replace("sys.argv[2]", "__file__ + '.db'"), "has stored nothing in {data}"),
    ):
        (tmp_path / "writer.py").write_text(change)
        done = conformance(tmp_path / "writer.py", tmp_path, "--kafka", str(kafka), "--power-loss", "--kills", "1")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(
            f"what a power failure would leave of this writer is unknown, because it {reason}; leave out --power-loss\n"
        )


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
