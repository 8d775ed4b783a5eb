"""What ``docs/writers.md`` shows is so: its Python prints what the comments say, and its events are read."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from flushtracker.conformance.judge import Judge
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.kafka.records import record_of
from flushtracker.wal.log_offset import LogOffset

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "writers.md").read_text()
JSON: Final = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_chain_is_as_the_page_shows() -> None:
    """Its block runs, and prints what the comments beside each ``print`` show."""
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "chain_position" in block]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"print\(.*\)  # (.*)", block)
    assert done.stdout.splitlines() == expected
    assert expected


def test_the_notification_and_its_key_are_as_the_page_shows() -> None:
    """Whoever copies them is understood."""
    notification, _ = JSON
    event = FlushNotification.from_json(notification)
    assert (event.type, event.offset) == ("flushed", LogOffset(200, 4))
    assert record_of(event).key == '["7301/1/shapes","users","flushed"]'
    assert '`["SOURCE","SHAPE_ID","flushed"]`' in PAGE


def test_the_dump_is_as_the_page_shows() -> None:
    """The judge reads its line."""
    _, line = JSON
    judge = Judge()
    judge.dumped([" ".join(line.split())], "after kill 1")
    assert judge.violations["once"].startswith(
        "after kill 1, the item of shape 'users' of 7301/1/conformance at 1/45+2"
    )


def test_the_architecture_page_shows_an_event_that_is_read() -> None:
    """Shape changes, with what they follow."""
    blocks = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if '"items"' in block]
    event = ShapeChangesEvent.from_json(block)
    assert json.loads(event.to_json()) == json.loads(block)


def test_the_example_writer_is_short() -> None:
    """Under 60 lines, with imports and blank lines."""
    assert len((ROOT / "examples" / "sqlite_writer.py").read_text().splitlines()) < 60
