"""An event of a newer version, in either stream, stops the job; a malformed flush does not."""

import json
from datetime import datetime, timezone
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from flushtracker.capture.source.prior_state import last_entries
from flushtracker.delta.registry_rows import SCHEMA
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import START_ANEW, DecodeError, NewerEventError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.ack_rows import AckRows
from tests.support.sample_source import SampleSource
from tests.support.simulated_job import Record, SimulatedJob, Unreadable

NEWER = '{"v":3,"source":"7301/1/shapes","up_to":[2000,0]}'


@pytest.mark.parametrize("is_fragment", [False, True])
def test_an_event_of_a_newer_version_stops_the_job_and_is_not_consumed(*, is_fragment: bool) -> None:
    """As a dead letter its flush would be lost: no writer sends it again, and its shape would block the ack."""
    job, source = SimulatedJob(AckRows()), SampleSource()
    job.run_batch([source.transaction(2000, "users")])
    before = job.checkpoint
    malformed = [Unreadable("{" * number, is_fragment=False) for number in range(20)]
    batch: list[Record] = [*malformed, Unreadable(NEWER, is_fragment=is_fragment), source.flushed("users", 2000)]
    Random(3).shuffle(batch)  # noqa: S311  reproducible
    what = "fragment" if is_fragment else "flush notification"
    message = rf"^a.jsonl:1: {what} has v 3, this program reads v 1; upgrade this program, then start it again"
    with pytest.raises(NewerEventError, match=message):
        job.run_batch(batch)
    assert (job.checkpoint, job.ack_lsn(source.name), job.dead_letters.count) == (before, 1998, 0)
    # The newer release reads the event, and continues on the same checkpoint.
    job = SimulatedJob(job.table, before)
    job.run_batch([*malformed, source.flushed("users", 2000)])
    assert (job.ack_lsn(source.name), job.dead_letters.count) == (2000, 20)


@pytest.mark.parametrize("version", ["0", "-1", "2.0", '"2"', "true", "null", "[2]"])
def test_only_a_greater_number_is_a_newer_version(version: str) -> None:
    """Anything else is malformed: a flush becomes a dead letter."""
    text = NEWER.replace('"v":3', f'"v":{version}')
    for read in (FragmentEvent.from_json, FlushNotification.from_json):
        with pytest.raises(DecodeError) as caught:
            read(text)
        assert type(caught.value) is DecodeError
    job = SimulatedJob(AckRows())
    job.run_batch([Unreadable(text, is_fragment=False)])
    assert job.dead_letters.count == 1


def test_a_registry_entry_of_a_newer_version_asks_for_an_upgrade_in_the_topic_and_in_the_table(tmp_path: Path) -> None:
    """In the table it was a malformed entry, for which the writers' job has the remedy of deleting records."""
    entry = ShapeEntry(
        "7301/1/shapes", ShapeDefinition("users", ("public", "users"), snapshot=True), 1, LogOffset(1, 0)
    )
    newer = json.dumps({**json.loads(entry.to_json()), "v": 5})
    message = (
        "registry entry has v 5, this program reads v 1; upgrade this program, then start it again; if a version "
        f"before 0.1.0 wrote it, {START_ANEW}"
    )
    with pytest.raises(NewerEventError) as caught:
        last_entries([newer.encode()])
    assert str(caught.value) == message
    uri = str(tmp_path / "log_shapes")
    table = RegistryTable(uri, create=True)
    row = [entry.source, "shape", "users", newer, datetime.now(timezone.utc)]
    write_deltalake(uri, pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], SCHEMA), mode="append")
    with pytest.raises(NewerEventError) as caught:
        table.entries()
    assert str(caught.value) == f"registry table {uri}: entry shape users of source {entry.source}: {message}"
