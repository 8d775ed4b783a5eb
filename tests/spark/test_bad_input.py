"""Bad input: a gap or an unreadable fragment stops the job before any later ack; a bad notification is set aside."""

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.delta.storage import table_rows
from flushtracker.errors import DecodeError, FlushtrackerError, GapError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.spark.rows import FLUSHES, FRAGMENTS, to_rows
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource


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
    """It goes into the file that the message names, since Spark replays the batch with the same files."""
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


def test_gap_of_one_source_stops_the_acks_of_all(spark: SparkSession, tmp_path: Path) -> None:
    """A batch with an error acknowledges nothing, so that its replay after a fix gives the acks of a correct batch."""
    job = JobFolder(tmp_path)
    broken, sound = SampleSource("a/1/s"), SampleSource("b/1/s")
    job.write([broken.transaction(2000), sound.transaction(2000)])
    broken.transaction(3000)
    job.write([broken.transaction(4000), sound.transaction(3000)])
    _stop_message(job, spark, GapError)
    assert job.acks() == [("a/1/s", 0, 2000), ("b/1/s", 0, 2000)]


def test_unreadable_fragment_stops_the_job_until_it_is_fixed(spark: SparkSession, tmp_path: Path) -> None:
    """A malformed line may hold a transaction: the error states its place, and the job resumes once it is readable."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)])
    event = source.transaction(3000).to_json()
    job.write([event.replace('"lsn":3000', '"lsn":"3000"')])
    message = _stop_message(job, spark, DecodeError)
    assert message.startswith(f"file:{tmp_path}/fragments/000001.jsonl: fragment cannot be read: lsn has type str, ")
    assert "fix it in place and start again" in message
    assert job.ack_lsns(source.name) == {0: 2000}
    (tmp_path / "fragments/000001.jsonl").write_text(event + "\n")
    job.run(spark)
    assert job.ack_lsns(source.name) == {0: 2000, 1: 3000}


def test_bad_notification_becomes_a_dead_letter_and_the_job_continues(spark: SparkSession, tmp_path: Path) -> None:
    """It can only delay an ack: it is kept with place, reason and text, and the next good one advances the ack."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    bad = ["", "{", '{"v": 2, "source": "s"}', source.flushed("users", 2000).to_json() + "{}"]
    job.write([source.transaction(2000, "users")], bad)
    job.write([source.flushed("users", 2000)])
    job.run(spark)
    assert job.ack_lsns(source.name) == {0: 1998, 1: 2000}
    letters = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["*"]).to_pylist()
    assert {letter["value"] for letter in letters} == set(bad)
    assert {letter["batch_id"] for letter in letters} == {0}
    assert {letter["place"] for letter in letters} == {f"file:{tmp_path}/flushes/000000.jsonl"}
    reasons = {letter["value"]: letter["reason"] for letter in letters}
    assert reasons[bad[2]] == "flush notification has v 2, this program reads v 1"
    assert reasons["{"].startswith("flush notification is not JSON: ")


def test_replayed_batch_writes_its_dead_letters_once_and_a_new_checkpoint_writes_them_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Dead letters are identified by checkpoint and batch: batch 0 of a new checkpoint is a different batch."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)], ["bad"])
    job.write([source.transaction(3000)], ["worse"])
    job.run(spark)
    # As if the driver had died before the last batch was committed.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint/commits" / name).unlink(missing_ok=True)
    job.run(spark)
    values = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["value"])["value"].to_pylist()
    assert sorted(values) == ["bad", "worse"]
    shutil.rmtree(tmp_path / "checkpoint")
    job.run(spark)
    values = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["value"])["value"].to_pylist()
    assert sorted(values) == ["bad", "bad", "worse", "worse"]


_SPOILED: tuple[object, ...] = (None, True, -1, 0, 1, 2.5, 2**63 - 1, 2**63, "x", "", [], {}, [None])


def _variants(event: str) -> list[str]:
    """An event and its malformed variants: each field removed, null, or of another type, at each depth."""
    texts = [event, event + " ", " " + event, event[:-1], event.replace('"', "'")]
    for tail in (
        "x",
        "{}",
        ",{}",
        "}",
        "]",
        ",",
        " ,x",
        "],[1]",
        "],[{}]",
        ',"a":1',
        '],"a":[{}',
        "]}",
        '}],"a":[{}]',
        "null",
    ):
        texts += [event + tail, tail + event]
    texts += [event + event, f"{event},{event}"]
    fields = json.loads(event)

    def spoil(node: object, rebuild: object) -> None:
        assert callable(rebuild)
        items: list[tuple[object, object]] = []
        if isinstance(node, dict):
            items = list(node.items())
        elif isinstance(node, list):
            items = list(enumerate(node))
        for key, value in items:
            for spoiled in _SPOILED:
                # The one difference: Spark reads a number or an object as text where text is expected.
                if isinstance(value, str) and not isinstance(spoiled, str) and spoiled is not None:
                    continue
                texts.append(json.dumps(rebuild(key, spoiled)))
            if isinstance(node, dict):
                texts.append(json.dumps(rebuild(key, ...)))
            spoil(value, lambda k, v, key=key, value=value: rebuild(key, _with(value, k, v)))

    spoil(fields, lambda key, value: _with(fields, key, value))
    return texts


def _with(node: object, key: object, value: object) -> object:
    """A copy of a JSON object or list with one value replaced, or without it where ``value`` is ``...``."""
    if isinstance(node, dict):
        return {k: (value if k == key else v) for k, v in node.items() if k != key or value is not ...}
    assert isinstance(node, list)
    return [value if index == key else item for index, item in enumerate(node)]


def _is_read(text: str, stream: str) -> bool:
    try:
        (FragmentEvent if stream == FRAGMENTS else FlushNotification).from_json(text)
    except DecodeError:
        return False
    return True


def test_spark_reads_exactly_what_the_core_reads(spark: SparkSession) -> None:
    """Both readers agree on every event with one malformed field."""
    source = SampleSource()
    fragment = source.fragment(3000, 4, {"a{}b": 4, 'q"}x{': 5, "orders": None}, commit=True).to_json()
    keepalive = source.keepalive(4000).to_json()
    events = [(FRAGMENTS, text) for text in _variants(fragment) + _variants(keepalive)]
    events += [(FLUSHES, text) for text in _variants(source.flushed("a} b", 3000, 4).to_json())]
    events += [(FLUSHES, text) for text in ("", "null", "[]", '"x"', "1", "{}", "{'v': 1}")]
    raw = spark.createDataFrame(
        [(*event, str(place)) for place, event in enumerate(events)], "stream string, value string, place string"
    )
    rows = to_rows(raw, 4).where("source = ''").collect()
    refused_by_spark = {int(row["place"]) for row in rows}
    refused_by_core = {place for place, (stream, text) in enumerate(events) if not _is_read(text, stream)}
    assert len(events) > 500
    assert len(events) - len(refused_by_core) > 20
    assert [events[place] for place in sorted(refused_by_spark ^ refused_by_core)] == []
