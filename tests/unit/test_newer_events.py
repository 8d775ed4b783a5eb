"""An event of a newer version, in either stream, stops the job; a malformed flush does not."""

from random import Random

import pytest

from flushtracker.errors import DecodeError, NewerEventError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
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
    readable = "1 to 2" if is_fragment else "1"
    message = rf"^a.jsonl:1: {what} has v 3, this program reads v {readable}; upgrade this program, then start it again"
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
