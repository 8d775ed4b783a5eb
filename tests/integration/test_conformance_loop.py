"""``flushtracker conformance-loop`` on this machine: the loop passes, and one that acknowledges too early does not."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from flushtracker.local.postgres import LocalPostgres
from flushtracker.loop_trial.history import RULES
from tests.support.brokers import Broker
from tests.support.standalone_cluster import FAST_START

ROOT: Final = Path(__file__).parents[2]
_LEFT: Final = """
SELECT nspname FROM pg_namespace WHERE nspname LIKE 'flushtracker%'
UNION ALL SELECT pubname FROM pg_publication UNION ALL SELECT slot_name FROM pg_replication_slots
"""
# With another program in place of flushtracker's own.
_RUN: Final = """
import sys
from flushtracker.cli.arguments import Parser, add_conformance_loop
from flushtracker.loop_trial.program import run
parser = Parser()
add_conformance_loop(parser)
sys.exit(run(parser.parse_args(sys.argv[2:]), sys.argv[1]))
"""


@pytest.fixture
def config(postgres: LocalPostgres, broker: Broker, tmp_path: Path) -> Path:
    """A table of someone else is on the server."""
    postgres.execute("CREATE TABLE theirs (id int PRIMARY KEY)", "INSERT INTO theirs VALUES (1)")
    settings = {
        "postgres": {"connection": dict(postgres.options)},
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, "replication_factor": 1},
        "place": str(tmp_path / "place"),
    }
    (tmp_path / "loop.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "loop.yaml"


def trial(module: str, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--config", str(config), "--data", str(config.parent / "data"), *options]
    return subprocess.run(
        [sys.executable, "-c", _RUN, module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "JAVA_TOOL_OPTIONS": FAST_START},
    )


def test_a_loop_that_acknowledges_too_early_fails_and_flushtracker_passes(
    config: Path, postgres: LocalPostgres
) -> None:
    """Both leave the server and the brokers as they were."""
    for module, kills, code, failed in (
        ("flushtracker", "2", 0, set[str]()),
        ("tests.support.early_ack", "1", 1, {"durable"}),
    ):
        done = trial(module, config, "--kills", kills, "--seed", "3", "--timeout", "300")
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        assert {*re.findall(r"^FAIL  (\w+)", done.stdout, re.MULTILINE)} == failed, output
        assert re.findall(r"^(?:pass|FAIL|\?)\s+(\w+)  ", done.stdout, re.MULTILINE) == [*RULES], output
        assert "seed 3" in done.stdout
        assert "left behind" not in done.stderr
        assert postgres.execute(_LEFT) == []
        assert postgres.execute("SELECT count(*) FROM theirs") == [(1,)]
