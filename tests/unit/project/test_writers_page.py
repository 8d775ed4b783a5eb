"""What ``docs/writers.md`` shows is so: its Python prints what the comments say, and its events are read."""

import json
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import FlushNotification, ShapeChangesEvent
from flushtracker.trials.conformance.judge import Judge
from flushtracker.trials.conformance.rows_judge import shown
from flushtracker.wal.log_offset import LogOffset
from tests.support.processes import run_to_end

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs" / "writers.md").read_text()
JSON: Final = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", ["chain_position(", "reader.take(", "reader.begin("])
def test_the_chain_and_the_snapshot_are_as_the_page_shows(name: str) -> None:
    """Each block runs, and prints what the comments beside each ``print`` show."""
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if name in block]
    done = run_to_end([sys.executable, "-c", block], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"print\(.*\)  # (.*)", block)
    assert done.stdout.splitlines() == expected
    assert expected


def test_the_notification_and_its_key_are_as_the_page_shows() -> None:
    """Whoever copies them is understood."""
    (notification,) = (block for block in JSON if '"flushed"' in block)
    event = FlushNotification.from_json(notification)
    assert (event.type, event.offset) == ("flushed", LogOffset(200, 4))
    assert record_of(event).key == '["7301/1/shapes","users","flushed","own"]'
    assert '`["SOURCE","SHAPE_ID","flushed","WRITER"]`' in PAGE


def test_the_events_of_snapshots_are_as_the_page_shows() -> None:
    """The event, and the end, which is shown apart."""
    (shown_event,) = (block for block in JSON if '"attempt"' in block)
    event = json.loads(shown_event)
    assert json.loads(SnapshotEvent.from_json(shown_event).to_json()) == event
    (end,) = re.findall(r'`(\{"rows": .*?\]\]\})`', PAGE)
    found = SnapshotEvent.from_json(json.dumps(event | {"end": json.loads(end)})).end
    assert found is not None
    assert found.contained.unseen == ((742, 742), (745, 750))


def test_the_rows_are_as_the_page_shows() -> None:
    """The judge reads its line."""
    (line,) = re.findall(r'`(\{"source": …,\s+"shape_id": …, "rows": \{KEY: VALUE, …\}\})`', PAGE)
    text = line.replace("…,", '"s",').replace("KEY: VALUE, …", '"k": {"id": "1"}')
    assert shown([text]) == {("s", "s"): {"k": {"id": "1"}}}


def test_the_dump_is_as_the_page_shows() -> None:
    """The judge reads its line."""
    (line,) = (block for block in JSON if block.startswith('{"source"'))
    judge = Judge()
    judge.dumped([" ".join(line.split())], "after kill 1")
    assert judge.violations["once"].startswith(
        "after kill 1, the item of shape 'users' of 7301/1/conformance at 1/45+2"
    )


def test_the_page_shows_an_event_of_changes_that_is_read() -> None:
    """With its link to the event before."""
    (block,) = [block for block in JSON if '"items"' in block]
    event = ShapeChangesEvent.from_json(block)
    assert json.loads(event.to_json()) == json.loads(block)


def test_the_page_shows_an_entry_of_a_removed_shape_that_is_read() -> None:
    (block,) = (block for block in JSON if '"removed_shape"' in block)
    entry = parse_registry_entry(block)
    assert isinstance(entry, ShapeEntry)
    assert (entry.removed_at, entry.definition.writer) == (LogOffset(23997288, 0), "own")


def test_the_example_writer_is_short() -> None:
    """Under 100 lines, with imports and blank lines."""
    assert len((ROOT / "examples" / "sqlite_writer.py").read_text().splitlines()) < 100
