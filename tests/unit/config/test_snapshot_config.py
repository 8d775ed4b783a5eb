"""The configuration of the snapshots' job: how a file is read, and the message for each wrong one."""

from pathlib import Path

import pytest

from flushtracker.cli import main
from flushtracker.config.snapshot_config import load_snapshot_config
from tests.support.config_files import DURATION, ConfigFile

FILE = ConfigFile("flushtracker.yaml", load_snapshot_config)
COMPLETE = """\
postgres: {host: db, password: "${KEY}"}
storage: {path: data, options: {KEY: "${KEY}"}}
capture: {publication: p}
snapshot:
  connections: 4
  lock_timeout: "2 seconds"
  statement_timeout: "1 hour"
  max_attempt: "2 hours"
  trigger: "1 minute"
"""
MINIMAL = "postgres: {host: db}\nstorage: data\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files refer to."""
    monkeypatch.setenv("KEY", "hunter2")


def test_every_key_is_read(tmp_path: Path) -> None:
    """No key has its default value here, and no option's value is shown."""
    config = FILE.load(tmp_path, COMPLETE)
    postgres = config.postgres
    assert dict(postgres.connection) == {"host": "db", "password": "hunter2"}
    assert (postgres.publication, postgres.connections) == ("p", 4)
    assert (postgres.lock_timeout_ms, postgres.statement_timeout_ms) == (2_000, 3_600_000)
    assert postgres.max_attempt_ms == 7_200_000
    assert (config.sink.log, config.sink.shapes, config.trigger_ms) == ("data/log", "data/log_shapes", 60_000)
    assert dict(config.sink.storage_options) == {"KEY": "hunter2"}
    assert "hunter2" not in repr(config)


def test_the_rest_has_defaults(tmp_path: Path) -> None:
    """Two connections, ten seconds for a lock, any time for a copy, five hours for an attempt, and one run."""
    config = FILE.load(tmp_path, MINIMAL)
    assert (config.postgres.connections, config.postgres.lock_timeout_ms) == (2, 10_000)
    assert (config.postgres.statement_timeout_ms, config.trigger_ms) == (None, None)
    assert config.postgres.max_attempt_ms == 18_000_000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("{slot: s}", "flushtracker.yaml line 3: snapshot.slot is not a known key; it is said once, as capture.slot"),
        ("{connections: 0}", "snapshot.connections is '0', not a number of at least 1"),
        ("{lock_timeout: 3}", "snapshot.lock_timeout is a number; put it in quotes"),
        ('{lock_timeout: "3"}', f"snapshot.lock_timeout is '3', not {DURATION}"),
        ('{max_attempt: "301 minutes"}', "'301 minutes', not at most 5 hours: older files"),
        ("{postgres: {password: x}}", "line 3: snapshot.postgres.password is in plain text; use a variable"),
    ],
)
def test_wrong_file_is_refused_with_its_place(tmp_path: Path, more: str, message: str) -> None:
    """The file, the line and the key."""
    assert message in FILE.refusal(tmp_path, f"{MINIMAL}snapshot: {more}\n")


def test_again_needs_names(capsys: pytest.CaptureFixture[str]) -> None:
    """To take all snapshots again would read every table."""
    with pytest.raises(SystemExit) as exited:
        main(["snapshot", "--config", "x", "--again"])
    assert exited.value.code == 2
    assert "--again needs the ids of the shapes" in capsys.readouterr().err
