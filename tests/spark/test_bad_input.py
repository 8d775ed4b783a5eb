"""Bad input: a gap or an unreadable fragment stops the job before any later ack; a bad notification does not."""

import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import Row, SparkSession

from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.delta.storage import table_rows
from flushtracker.errors import START_ANEW, DecodeError, FlushtrackerError, GapError, NewerEventError
from flushtracker.spark.shape_grouping import shape_group_of
from flushtracker.tracking.chain_links import ChainLinks, Link
from flushtracker.tracking.job.rows import Unreadable, to_rows
from flushtracker.tracking.shape_events import (
    FLUSHED,
    REMOVED,
    SENT,
    SENT_WITH_COMMIT,
    ShapeEvent,
    ShapeEvents,
    label_of,
)
from flushtracker.tracking.source_tracker import CHAIN
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from tests.support.event_mutations import mutated, sample_events, spoiled
from tests.support.event_oracle import NotAnEventError, parse_event
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource
from tests.support.seeds import in_turn


def _stop_message(job: JobFolder, spark: SparkSession, kind: type[FlushtrackerError]) -> str:
    with pytest.raises(kind) as caught:
        job.run(spark)
    return str(caught.value)


def test_gap_stops_the_job_before_any_ack_passes_it(spark: SparkSession, tmp_path: Path) -> None:
    """The message names the file, the source and both offsets; a restarted job stops at the same fragment."""
    job = JobFolder(tmp_path)
    source = SampleSource("7301/1/shapes")
    job.write([source.transaction(2000)])
    source.transaction(3000, "users")  # lost
    job.write([source.transaction(4000, op=4)])
    message = _stop_message(job, spark, GapError)
    assert message.startswith(f"file:{tmp_path}/fragments/000001.jsonl: fragment 0/FA0+4 of source 7301/1/shapes ")
    assert "follows 0/BB8+0, but the chain ends at transaction 0/7D0" in message
    assert "put the missing fragments back in front of this one, or restart capture" in message
    assert job.ack_lsns(source.name) == {0: 2000}
    assert _stop_message(job, spark, GapError) == message
    assert job.ack_lsns(source.name) == {0: 2000}


def test_gap_is_fixed_by_inserting_the_missing_fragment(spark: SparkSession, tmp_path: Path) -> None:
    """It goes into the file that the message names, since Spark reruns the batch with the same files."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    lost = source.transaction(3000)
    job.write([source.transaction(4000)])
    _stop_message(job, spark, GapError)
    incomplete = tmp_path / "fragments/000001.jsonl"
    incomplete.write_text(lost.to_json() + "\n" + incomplete.read_text())
    job.run(spark)
    assert job.ack_lsns(source.name) == {0: 2000, 1: 4000}


def test_gap_is_fixed_by_a_resend_and_a_new_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Fragments from before capture's restart are moved away; all flushes are read again, however old."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    source.transaction(3000, "users")
    job.write([source.transaction(4000), source.flushed("users", 3000)])
    _stop_message(job, spark, GapError)
    for name in ("000000.jsonl", "000001.jsonl"):
        (tmp_path / "fragments" / name).rename(tmp_path / name)
    shutil.rmtree(tmp_path / "checkpoint")
    source.restart(2001)
    job.write([source.transaction(3000, "users"), source.transaction(4000)])
    job.run(spark)
    assert max(job.ack_lsns(source.name).values()) == 4000


def test_first_fragment_without_start_is_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    """With neither state nor ack, it is unknown what precedes the first fragment."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    source.transaction(2000, "users")  # removed by retention
    job.write([source.transaction(3000)])
    message = _stop_message(job, spark, GapError)
    assert "the first fragment of source 7301/1/shapes follows 0/7D0+0 and is not marked as a start" in message
    assert table_rows(DeltaTable(str(tmp_path / "acks")), ["*"]).num_rows == 0


def test_gap_of_one_source_leaves_the_acks_of_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """The state has the gap, so the advice is to resend, and not to put the fragment into a file that was read."""
    job = JobFolder(tmp_path)
    broken, sound = SampleSource("a/1/s"), SampleSource("b/1/s")
    job.write([broken.transaction(2000), sound.transaction(2000)])
    broken.transaction(3000)
    job.write([broken.transaction(4000), sound.transaction(3000)])
    message = _stop_message(job, spark, GapError)
    assert "follows 0/BB8+0" in message
    assert message.endswith(
        ": restart capture, which resends everything unconfirmed, and start over with a new "
        "checkpoint and only the files written since"
    )
    assert job.acks() == [("a/1/s", 0, 2000), ("b/1/s", 0, 2000), ("b/1/s", 1, 3000)]


def test_unreadable_fragment_stops_the_job_until_it_is_fixed(spark: SparkSession, tmp_path: Path) -> None:
    """A malformed line may hold a transaction: the error states its place, and the job resumes once it is readable."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    event = source.transaction(3000).to_json()
    job.write([event.replace('"lsn":3000', '"lsn":"3000"')])
    message = _stop_message(job, spark, DecodeError)
    place = f"file:{tmp_path}/fragments/000001.jsonl"
    assert message.startswith(f"{place}: fragment cannot be read: fragment: Expected `int`, got `str` - at `$.lsn`; ")
    assert "fix it in place and start again" in message
    assert job.ack_lsns(source.name) == {0: 2000}
    (tmp_path / "fragments/000001.jsonl").write_text(event + "\n")
    job.run(spark)
    assert job.ack_lsns(source.name) == {0: 2000, 1: 3000}


_DAMAGES: Final = {
    "damaged byte": (b"us", b"us\xe9r", "fragment is not JSON: Invalid UTF-8 encoded string"),
    "half a surrogate pair": (
        *(b"us", b"us\\ud800"),
        "fragment is not JSON: unexpected end of escaped utf-16 surrogate pair (byte 285)",
    ),
    "shapes twice": (b'"shapes"', b'"shapes":[],"shapes"', "fragment has the key 'shapes' twice"),
    "NaN": (b'"shapes":[', b'"later":NaN,"shapes":[', "fragment is not JSON: invalid character (byte 262)"),
    "line break": (b"us", b"us\\nforged", "the name 'us\\nforged' has a control character, such as a line break"),
}


@pytest.mark.parametrize("kind", in_turn([*_DAMAGES]))
def test_damaged_name_does_not_become_another_name(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """A phantom shape would never be flushed, and a shape that is dropped would not be waited for."""
    old, new, reason = _DAMAGES[kind]
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    job.write([source.transaction(3000, "us")])
    file = tmp_path / "fragments/000001.jsonl"
    file.write_bytes(file.read_bytes().replace(old, new))
    message = _stop_message(job, spark, DecodeError)
    assert message.startswith(f"file:{file}: fragment cannot be read: {reason}; a transaction may be lost with it")
    assert job.ack_lsns(source.name) == {0: 2000}


def test_bad_notification_becomes_a_dead_letter_and_the_job_continues(spark: SparkSession, tmp_path: Path) -> None:
    """It can only delay an ack: it is kept with place, reason and text, and the next good one advances the ack."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    bad = ["", "{", '{"v": "2", "source": "s"}', source.flushed("users", 2000).to_json() + "{}"]
    job.write([source.transaction(2000, "users")], bad)
    job.write([source.flushed("users", 2000)])
    job.run(spark)
    assert job.ack_lsns(source.name) == {0: 1998, 1: 2000}
    letters = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["*"]).to_pylist()
    assert {letter["value"] for letter in letters} == set(bad)
    assert {letter["batch_id"] for letter in letters} == {0}
    assert {letter["place"] for letter in letters} == {f"file:{tmp_path}/flushes/000000.jsonl"}
    reasons = {letter["value"]: letter["reason"] for letter in letters}
    assert reasons[bad[2]] == "flush notification has v '2', this program reads v 1"
    assert reasons["{"].startswith("flush notification is not JSON: ")


def test_tombstone_among_flushes_is_no_malformed_event(spark: SparkSession) -> None:
    """Compaction makes them. A fragment is never one: what it held is lost."""
    events = [(FLUSHES, None, "flush"), (FRAGMENTS, None, "fragment")]
    raw = spark.createDataFrame(events, "stream string, value binary, place string")
    (row,) = to_rows(raw, 4).collect()
    assert Unreadable.unpack(row["packed"]) == Unreadable(FRAGMENTS, None, "fragment", "it has no value")


@pytest.mark.parametrize("stream", [FRAGMENTS, FLUSHES])
def test_event_of_a_newer_version_stops_the_job_until_it_is_upgraded(
    spark: SparkSession, tmp_path: Path, stream: str
) -> None:
    """The release that reads it continues on the same checkpoint: nothing has been skipped or set aside."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000, "users")])
    job.write([source.transaction(3000, "users"), source.flushed("users", 3000)])
    file = tmp_path / stream / "000001.jsonl"
    readable = file.read_text()
    file.write_text(readable.replace('"v":1', '"v":3'))
    message = _stop_message(job, spark, NewerEventError)
    what = "fragment" if stream == FRAGMENTS else "flush notification"
    assert message == (
        f"file:{file}: {what} has v 3, this program reads v 1; upgrade this program, then start it again; if a version "
        f"before 0.1.0 wrote it, {START_ANEW}"
    )
    assert job.ack_lsns(source.name) == {0: 1998}
    assert not (tmp_path / "dead_letters").exists()
    file.write_text(readable)
    job.run(spark)
    assert job.ack_lsns(source.name) == {0: 1998, 1: 3000}


def test_dead_letter_shows_bytes_that_are_not_utf8(spark: SparkSession, tmp_path: Path) -> None:
    """Escaped, since the table's column is text."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000), source.flushed("us", 2000)])
    file = tmp_path / "flushes/000000.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"us"', b'"\xe9"'))
    job.run(spark)
    letters = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["*"]).to_pylist()
    assert [letter["reason"] for letter in letters] == ["flush notification is not JSON: Invalid UTF-8 encoded string"]
    assert r'"shape_id":"\xe9"' in letters[0]["value"]


def test_rerun_batch_writes_its_dead_letters_once_and_a_new_checkpoint_writes_them_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Dead letters are identified by checkpoint and batch: batch 0 of a new checkpoint is a different batch."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)], ["bad"])
    job.write([source.transaction(3000)], ["worse"])
    job.run(spark)
    # As if the driver had died before the last batch was committed.
    (tmp_path / "checkpoint/commits/1").unlink()
    job.run(spark)
    values = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["value"])["value"].to_pylist()
    assert sorted(values) == ["bad", "worse"]
    shutil.rmtree(tmp_path / "checkpoint")
    job.run(spark)
    values = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["value"])["value"].to_pylist()
    assert sorted(values) == ["bad", "bad", "worse", "worse"]


def test_all_frames_of_a_group_count(spark: SparkSession, tmp_path: Path) -> None:
    """Spark cuts the rows of a large group into frames; here each of four tasks has one row for it, in a frame."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    for lsn in (2000, 3000):
        job.write([source.transaction(lsn, "users"), source.flushed("users", lsn)], [f"bad {lsn}"])
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "1")
    try:
        job.run(spark, max_files_per_trigger=2)
    finally:
        spark.conf.set(name, before)
    assert job.ack_lsns(source.name) == {0: 3000}
    letters = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["value"])["value"].to_pylist()
    assert sorted(letters) == ["bad 2000", "bad 3000"]


_Part = tuple[str, str, object]
"""What an event has for one group: its source, the group, and a link or a shape's event."""


def _expected_parts(stream: str, event: Mapping[str, Any], place: str) -> list[_Part]:
    """What the definition of an event says that the groups get."""
    source = event["source"]
    if stream == FLUSHES:
        kind, shape_id = REMOVED if event["type"] == "removed" else FLUSHED, event["shape_id"]
        label = label_of(shape_id, event["writer"])
        return [_part(source, shape_id, ShapeEvent(label, kind, *_offset(event["offset"])))]
    last, is_commit = _offset(event["last_log_offset"]), event["commit"] is not None
    link = Link(_offset(event["follows"]), last, event["start"], is_commit, place)
    parts: list[_Part] = [(source, CHAIN, link)]
    kind = SENT_WITH_COMMIT if is_commit else SENT
    for shape in event["shapes"]:
        op = _offset(shape["last_offset"]).op_offset if shape.get("last_offset") else -1
        label = label_of(shape["shape_id"], shape.get("writer", LOG_WRITER))
        parts.append(_part(source, shape["shape_id"], ShapeEvent(label, kind, last.tx_offset, op, last.op_offset)))
    return parts


def _part(source: str, shape_id: str, event: ShapeEvent) -> _Part:
    """The events of all writers that notify a shape are in one group."""
    return source, str(shape_group_of(shape_id, 4)), event


def _offset(fields: Mapping[str, int]) -> LogOffset:
    return LogOffset(fields["tx_offset"], fields["op_offset"])


def _parts(row: Row) -> list[_Part]:
    """What a row has for its group."""
    if row["shape_group"] == CHAIN:
        links = ChainLinks.unpack(row["packed"])
        return [(row["source"], CHAIN, links[index]) for index in range(len(links))]
    events = ShapeEvents.unpack(row["packed"])
    numbers = events.numbers.T.tolist()
    return [
        (row["source"], row["shape_group"], ShapeEvent(shape_id, *each))
        for shape_id, each in zip(events.labels, numbers, strict=True)
    ]


def _is_defined(stream: str, value: bytes) -> Mapping[str, Any] | None:
    with suppress(NotAnEventError):
        return parse_event(stream, value)
    return None


def test_spark_reads_events_as_they_are_defined(spark: SparkSession) -> None:
    """Damaged events, on their way through Spark: the verdict of the definition, and its values for each group.

    Every field of some events is spoiled once, and others are damaged at random.
    """
    rng = Random(11)  # noqa: S311  reproducible
    source = SampleSource()
    fragment = source.fragment(3000, 4, {"a{}b": 4, 'q"}x{': 5, "orders": None}, commit=True).to_json()
    texts = [(FRAGMENTS, text) for text in spoiled(fragment) + spoiled(source.keepalive(4000).to_json())]
    texts += [(FLUSHES, text) for text in spoiled(source.flushed("a} b", 3000, 4).to_json())]
    events = [(stream, text.encode()) for stream, text in texts]
    events += [(stream, mutated(rng, text)) for stream, text in islice(sample_events(rng), 600)]
    raw = spark.createDataFrame(
        [(*event, str(place)) for place, event in enumerate(events)], "stream string, value binary, place string"
    )
    rows = to_rows(raw.repartition(3), 4).collect()
    found = Counter(part for row in rows if row["source"] for part in _parts(row))
    unreadable = {each.place: each for each in (Unreadable.unpack(row["packed"]) for row in rows if not row["source"])}
    expected: Counter[_Part] = Counter()
    for place, (stream, value) in enumerate(events):
        event = _is_defined(stream, value)
        if event is None:
            failure = unreadable.pop(str(place))
            assert (failure.stream, bool(failure.reason)) == (stream, True), value
            assert failure.text == value.decode(errors="backslashreplace")
        else:
            expected.update(_expected_parts(stream, event, str(place)))
    assert unreadable == {}
    assert found == expected
    readable = sum(_is_defined(*event) is not None for event in events)
    assert len(events) / 10 < readable < len(events) * 9 / 10
