"""``--log-format json``: what the job and Spark write to stderr, from the JVM's start to the reason for the end."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.config_file import write_config
from tests.support.processes import run_to_end
from tests.support.seeds import every

ROOT: Final = Path(__file__).parents[2]
_BEFORE_ANY_LOG: Final = "WARNING: Using incubator modules:"
"""The JVM itself prints this, before it has read any configuration."""


@every(3, 1)
def test_every_line_of_a_job_and_of_spark_is_an_object(tmp_path: Path) -> None:
    """With --verbose Spark has something to say; the job ends with the place of a fragment that is none."""
    for role in ("fragments", "flushes"):
        (tmp_path / role).mkdir()
    (tmp_path / "fragments" / "1.jsonl").write_text("not\\na fragment\n")
    config = {
        "files": str(tmp_path),
        "storage": str(tmp_path),
        "track": {"trigger": "available_now", "shape_groups": 1, "shuffle_partitions": 1},
        "status": False,
    }
    write_config(tmp_path / "track.yaml", config)
    options = ["--config", str(tmp_path / "track.yaml"), "--log-format", "json", "--verbose"]
    command = [sys.executable, "-m", "flushtracker", "track", *options]
    done = run_to_end(command, timeout=300, cwd=ROOT)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(_BEFORE_ANY_LOG)]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert done.returncode == 3
    assert all({"timestamp", "level", "logger", "message"} <= event.keys() for event in events)
    loggers = {event["logger"] for event in events}
    assert {"flushtracker.tracking.job.query", "flushtracker track"} <= loggers
    assert any(logger.startswith("org.apache.") for logger in loggers)
    assert events[-1]["exit_code"] == 3
    assert "fragment cannot be read" in events[-1]["message"]
