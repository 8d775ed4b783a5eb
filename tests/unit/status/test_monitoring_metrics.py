"""``/metrics``: every metric that is promised, with its value, in both formats, whatever the names contain."""

from collections.abc import Iterable
from random import Random
from typing import Final

import pytest
from msgspec.structs import replace
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from flushtracker import __version__
from flushtracker.status.capture_status import (
    CaptureStatus,
    EndedShape,
    Eviction,
    RefusedShape,
    SlotStatus,
    WaitingShapes,
)
from flushtracker.status.http.metrics import metrics
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.serve_status import AnswerCount, ServeStatus, TailStatus
from flushtracker.status.snapshot_status import AttemptStatus, SnapshotSource, SnapshotStatus
from flushtracker.status.write_status import (
    Failure,
    ShapeNote,
    SourceShapes,
    UpkeepStatus,
    WriteStatus,
    WrittenSource,
)
from tests.support.random_status import NAMES, random_capture, random_job, random_snapshot, random_write

NOW_MS: Final = 1_800_000_100_000
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"

JOB: Final = JobStatus(
    at_ms=NOW_MS - 1_000,
    started_at_ms=1_800_000_000_000,
    is_ready=True,
    sources=(
        SourceStatus(
            "7/1/s",
            0x100,
            0x180,
            2,
            1,
            NOW_MS - 60_000,
            (Holder('a"b\\c\nd', NOW_MS - 90_000, 3, 137, 0x180), Holder("users", NOW_MS - 2_500, 1, 40, 0x100)),
            events=990,
        ),
        SourceStatus("7/2/s", 0x200, 0x200, 0, 0, None, (), events=10),
    ),
    batch_id=4,
    batch_at_ms=NOW_MS - 500,
    batches=5,
    batch_ms=2_500,
    events=1_000,
    dead_letters=2,
    records_behind=7,
    state_bytes=4_096,
    batch_running_since_ms=NOW_MS - 250,
)
CAPTURE: Final = CaptureStatus(
    at_ms=NOW_MS,
    started_at_ms=1_800_000_000_000,
    source="7/1/s",
    is_connected=True,
    slot=SlotStatus(
        "s",
        NOW_MS - 2_000,
        is_active=True,
        wal_status="reserved",
        written_lsn=0x300,
        confirmed_lsn=0x100,
        retained_bytes=512,
        safe_wal_bytes=1_024,
        failover_lacks=("it is no failover slot",),
    ),
    received_lsn=0x2F0,
    published_lsn=0x2E0,
    acknowledged_lsn=0x100,
    confirmed_lsn=0x100,
    acks_read_at_ms=NOW_MS - 250,
    shapes=12,
    changes_matched=30,
    changes_unmatched=40,
    publish_queue_bytes=64,
    reconnects=3,
    evicted=1,
    evictions=(Eviction("orders", NOW_MS, "held 50 GB"),),
    waiting=(
        WaitingShapes("public.a", ("x",), 11, "not the owner", "ALTER PUBLICATION …"),
        WaitingShapes("public.b", ("y",), 1, "it waits for the end of transaction 7", None),
    ),
    shapes_refused=2,
    ended=(EndedShape("old", 2, 900, "its table was dropped"),),
    refused=(RefusedShape("users", "no such table"), RefusedShape(None, "shapes[3].id is missing")),
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(status: ProgramStatus, accept: str = OPENMETRICS) -> Samples:
    """The samples by name and labels; a family or a sample that is there twice would be refused by Prometheus."""
    families = list(_families(status, accept))
    assert len({family.name for family in families}) == len(families)
    found = [((s.name, tuple(sorted(s.labels.items()))), s.value) for family in families for s in family.samples]
    assert len(dict(found)) == len(found)
    return dict(found)


def _families(status: ProgramStatus, accept: str) -> Iterable[Metric]:
    content_type, body = metrics(status, NOW_MS, accept)
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    assert is_openmetrics == (accept == OPENMETRICS)
    parse = parse_openmetrics if is_openmetrics else parse_text
    return parse(body.decode())


def named(found: Samples, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of this name, without the labels of the program and the slot, which every one has."""
    return without(found, name, "program", "slot")


def of_program(found: Samples, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The same, without the label of the program's only source."""
    return without(found, name, "program", "slot", "source")


def without(found: Samples, name: str, *dropped: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(label for label in labels if label[0] not in dropped): value
        for (sample, labels), value in found.items()
        if sample == f"flushtracker_{name}"
    }


ONE: Final = (("source", "7/1/s"),)
TWO: Final = (("source", "7/2/s"),)
OTHER: Final = (("source", "8/1/t"),)
ODD: Final = (("shape", 'a"b\\c\nd'), ("source", "7/1/s"))
USERS: Final = (("shape", "users"), ("source", "7/1/s"))


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ack_lsn", {ONE: 0x100, TWO: 0x200}),
        ("last_seen_lsn", {ONE: 0x180, TWO: 0x200}),
        ("unacknowledged_bytes", {ONE: 0x80, TWO: 0}),
        ("ack_age_seconds", {ONE: 60, TWO: 0}),
        ("pending_shapes", {ONE: 2, TWO: 0}),
        ("stalled_shapes", {ONE: 1, TWO: 0}),
        ("shape_held_bytes", {ODD: 137, USERS: 40}),
        ("shape_pending_seconds", {ODD: 90, USERS: 2.5}),
        ("batch_running_seconds", {(): 0.25}),
        ("batch_seconds_sum", {(): 2.5}),
        ("batch_seconds_count", {(): 5}),
        ("batch_timestamp_seconds", {(): 1_800_000_099.5}),
        ("events_total", {ONE: 990, TWO: 10}),
        ("kafka_records_behind", {(): 7}),
        ("dead_letters_total", {(): 2}),
        ("state_bytes", {(): 4_096}),
        ("ready", {(): 1}),
        ("start_timestamp_seconds", {(): 1_800_000_000}),
        ("build_info", {(("version", __version__),): 1}),
    ],
)
def test_job_exports(name: str, expected: dict[tuple[tuple[str, str], ...], float], accept: str) -> None:
    assert named(samples(JOB, accept), name) == expected


def wal_status(**values: int) -> dict[tuple[tuple[str, str], ...], float]:
    return {(("wal_status", name),): value for name, value in values.items()}


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slot_retained_bytes", {(): 512}),
        ("slot_safe_wal_bytes", {(): 1_024}),
        ("slot_failover_ready", {(): 0}),
        ("slot_wal_status", wal_status(reserved=1, extended=0, unreserved=0, lost=0)),
        ("slot_active", {(): 1}),
        ("slot_read_timestamp_seconds", {(): 1_800_000_098}),
        ("written_lsn", {(): 0x300}),
        ("received_lsn", {(): 0x2F0}),
        ("published_lsn", {(): 0x2E0}),
        ("confirmed_lsn", {(): 0x100}),
        ("connected", {(): 1}),
        ("changes_total", {(("matched", "true"),): 30, (("matched", "false"),): 40}),
        ("publish_queue_bytes", {(): 64}),
        ("reconnects_total", {(): 3}),
        ("shapes", {(): 12}),
        ("shapes_waiting", {(): 12}),
        ("shapes_refused", {(): 2}),
        ("shapes_ended", {(): 1}),
        ("ack_read_timestamp_seconds", {(): 1_800_000_099.75}),
        ("evictions_total", {(): 1}),
        ("ready", {(): 1}),
        ("start_timestamp_seconds", {(): 1_800_000_000}),
        ("build_info", {(("version", __version__),): 1}),
    ],
)
def test_capture_exports(name: str, expected: dict[tuple[tuple[str, str], ...], float], accept: str) -> None:
    assert of_program(samples(CAPTURE, accept), name) == expected


def test_evictions_from_before_the_start_are_not_counted_again() -> None:
    """They are in the document. Counted, they alerted for an hour after each start of capture, as if they were new."""
    old = Eviction("old", CAPTURE.started_at_ms - 1, "held 50 GB")
    assert of_program(samples(replace(CAPTURE, evicted=0, evictions=(old, old))), "evictions_total") == {(): 0}


def test_what_is_not_known_has_no_sample() -> None:
    """A zero would be an answer: an alert could not tell it from a value."""
    new = samples(JobStatus(1, 1, is_ready=False, sources=(SourceStatus("s", None, None, 0, 0, None, ()),)))
    for name in ("ack_lsn", "last_seen_lsn", "kafka_records_behind", "state_bytes", "batch_timestamp_seconds"):
        assert named(new, name) == {}
    assert of_program(new, "ready") == {(): 0}
    capture = samples(CaptureStatus(1, 1, None, is_connected=False))
    assert named(capture, "slot_failover_ready") == {}
    slot = ("slot_retained_bytes", "slot_safe_wal_bytes", "slot_wal_status", "slot_active", "written_lsn")
    for name in (*slot, "received_lsn", "published_lsn", "confirmed_lsn", "ack_read_timestamp_seconds"):
        assert named(capture, name) == {}
    assert named(capture, "connected") == {(): 0}


def test_a_wal_status_that_is_not_known_here_is_exported_too() -> None:
    """PostgreSQL may add one."""
    slot = SlotStatus(
        "s",
        1,
        is_active=True,
        wal_status="invalidated",
        written_lsn=1,
        confirmed_lsn=1,
        retained_bytes=1,
        safe_wal_bytes=1,
    )
    found = named(samples(CaptureStatus(1, 1, None, is_connected=True, slot=slot)), "slot_wal_status")
    assert found == wal_status(reserved=0, extended=0, unreserved=0, lost=0, invalidated=1)


def test_a_retired_source_fires_no_alert() -> None:
    """It has one metric, which says so; what is pending of it would never clear."""
    retired = replace(JOB.sources[0], source="7/0/s", retired_by="7/1/s")
    found = samples(replace(JOB, sources=(retired, *JOB.sources)))
    assert named(found, "source_retired") == {
        (("source", name),): name == "7/0/s" for name in ("7/0/s", "7/1/s", "7/2/s")
    }
    assert {name for name, labels in found if ("source", "7/0/s") in labels} == {"flushtracker_source_retired"}


WRITE: Final = WriteStatus(
    NOW_MS - 1_000,
    1_800_000_000_000,
    is_ready=True,
    sources=(
        WrittenSource(
            *("7/1/s", 0x100, NOW_MS - 5_000, NOW_MS - 7_500, 2_500, 30, 12),
            gaps=(ShapeNote("users", "…"),),
            shapes=SourceShapes(5, 2, (ShapeNote("old", "…"),), 3, ("a",)),
            cut_lsn=0xF0,
            cut_at_ms=NOW_MS - 3_000,
        ),
        WrittenSource("8/1/t"),
    ),
    batch_id=4,
    batch_at_ms=NOW_MS - 500,
    batch_running_since_ms=NOW_MS - 250,
    batches=5,
    batch_ms=2_500,
    records_behind=7,
    state_bytes=4_096,
    failure=Failure(NOW_MS - 9_000, "unavailable"),
    upkeep=UpkeepStatus(NOW_MS - 60_000, NOW_MS - 2_000, NOW_MS - 30_000, "disk full"),
)
SNAPSHOT: Final = SnapshotStatus(
    NOW_MS,
    1_800_000_000_000,
    attempt=AttemptStatus("7/1/s", "t", 2, NOW_MS - 60_000, 10),
    sources=(SnapshotSource("7/1/s", 4, 5, 600),),
    waiting_shapes=2,
    failed_shapes=3,
    progress_at_ms=NOW_MS - 20_000,
)
SERVE: Final = ServeStatus(
    NOW_MS,
    1_800_000_000_000,
    looked_at_ms=NOW_MS - 500,
    looks=9,
    failed_looks=1,
    log_version=3,
    shapes=4,
    watched_shapes=2,
    connections=6,
    waiting_clients=5,
    answers=(AnswerCount(200, 90), AnswerCount(503, 7)),
    sent_bytes=1_024,
    running_log_reads=1,
    running_row_reads=2,
    log_reads=30,
    row_reads=8,
    refused_reads=3,
    kept_pages=11,
    kept_states=12,
    kept_memory_bytes=2_048,
    kept_disk_bytes=4_096,
    on_demand_definitions=13,
    refused_definitions=14,
    running_on_demand_reads=15,
    on_demand_reads=16,
    running_subset_reads=17,
    subset_reads=18,
    subset_read_ms=1_500,
    subset_rows=20,
    tail=TailStatus("no broker answers", 45, 100, 60, 5, 4, 3, 70, 2, 512),
)
ALL: Final = (JOB, WRITE, SNAPSHOT, SERVE, CAPTURE)


def by_of(log: int, rows: int, names: tuple[str, str] = ("log", "rows")) -> dict[tuple[tuple[str, str], ...], float]:
    return {(("of", names[0]),): log, (("of", names[1]),): rows}


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ready", {(): 1}),
        ("start_timestamp_seconds", {(): 1_800_000_000}),
        ("build_info", {(("version", __version__),): 1}),
        ("serve_look_timestamp_seconds", {(): 1_800_000_099.5}),
        ("serve_looks_total", {(): 9}),
        ("serve_failed_looks_total", {(): 1}),
        ("serve_log_version", {(): 3}),
        ("serve_shapes", {(): 4}),
        ("serve_watched_shapes", {(): 2}),
        ("serve_connections", {(): 6}),
        ("serve_waiting_clients", {(): 5}),
        ("serve_answers_total", {(("status", "200"),): 90, (("status", "503"),): 7}),
        ("serve_sent_bytes_total", {(): 1_024}),
        ("serve_running_reads", by_of(1, 2)),
        ("serve_reads_total", by_of(30, 8)),
        ("serve_refused_reads_total", {(): 3}),
        ("serve_kept", by_of(11, 12, ("pages", "states"))),
        ("serve_kept_memory_bytes", {(): 2_048}),
        ("serve_kept_disk_bytes", {(): 4_096}),
        ("serve_on_demand_definitions", {(): 13}),
        ("serve_refused_definitions_total", {(): 14}),
        ("serve_running_on_demand_reads", {(): 15}),
        ("serve_on_demand_reads_total", {(): 16}),
        ("serve_running_subset_reads", {(): 17}),
        ("serve_subset_reads_total", {(): 18}),
        ("serve_subset_read_seconds_total", {(): 1.5}),
        ("serve_subset_rows_total", {(): 20}),
        ("serve_tail_is_read", {(): 0}),
        ("serve_tail_lag_seconds", {(): 0.045}),
        ("serve_tail_records_total", {(): 100}),
        ("serve_tail_skipped_records_total", {(): 60}),
        ("serve_tail_unreadable_records_total", {(): 5}),
        ("serve_tail_outages_total", {(): 4}),
        ("serve_tail_resets_total", {(): 3}),
        ("serve_tail_answers_total", {(): 70}),
        ("serve_tail_unlinked_total", {(): 2}),
        ("serve_tail_memory_bytes", {(): 512}),
    ],
)
def test_server_exports(name: str, expected: dict[tuple[tuple[str, str], ...], float], accept: str) -> None:
    assert named(samples(SERVE, accept), name) == expected


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flushed_lsn", {ONE: 0x100}),
        ("notified_timestamp_seconds", {ONE: 1_800_000_095}),
        ("commit_timestamp_seconds", {ONE: 1_800_000_092.5}),
        ("written_after_seconds", {ONE: 2.5}),
        ("cut_lsn", {ONE: 0xF0}),
        ("cut_timestamp_seconds", {ONE: 1_800_000_097}),
        ("rows_total", {ONE: 30, OTHER: 0}),
        ("gap_shapes", {ONE: 12, OTHER: 0}),
        ("live_shapes", {ONE: 5}),
        ("ended_shapes", {ONE: 2}),
        ("shapes_without_snapshot", {ONE: 3}),
        ("upkeep_timestamp_seconds", {(): 1_800_000_040}),
        ("upkeep_failing_seconds", {(): 30}),
        ("upkeep_running_seconds", {(): 2}),
        ("failure_timestamp_seconds", {(): 1_800_000_091}),
        ("batch_running_seconds", {(): 0.25}),
        ("batch_seconds_sum", {(): 2.5}),
        ("batch_seconds_count", {(): 5}),
        ("batch_timestamp_seconds", {(): 1_800_000_099.5}),
        ("kafka_records_behind", {(): 7}),
        ("state_bytes", {(): 4_096}),
        ("ready", {(): 1}),
        ("start_timestamp_seconds", {(): 1_800_000_000}),
        ("build_info", {(("version", __version__),): 1}),
        ("snapshot_ready", {}),
    ],
)
def test_writers_export(name: str, expected: dict[tuple[tuple[str, str], ...], float], accept: str) -> None:
    assert named(samples(WRITE, accept), name) == expected


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
@pytest.mark.parametrize("status", [SNAPSHOT, replace(WRITE, snapshots=SNAPSHOT)], ids=lambda each: each.program)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("snapshot_ready", 1),
        ("snapshot_shapes_left", 4),
        ("snapshot_shapes_taken_total", 5),
        ("snapshot_rows_total", 600),
        ("snapshot_shapes_waiting", 2),
        ("snapshot_shapes_failed", 3),
        ("snapshot_attempt_seconds", 60),
        ("snapshot_stalled_seconds", 20),
        ("ready", 1),
    ],
)
def test_snapshots_export(name: str, expected: float, status: ProgramStatus, accept: str) -> None:
    """Also where the writers' job takes them."""
    assert of_program(samples(status, accept), name) == {(): expected}


def sources_of(status: ProgramStatus) -> set[tuple[str | None, str | None]]:
    """The source and the slot of each sample."""
    labels = [dict(labels) for _, labels in samples(status)]
    assert {each["program"] for each in labels} == {status.program}
    return {(each.get("source"), each.get("slot")) for each in labels}


def test_every_series_of_a_program_with_one_source_says_which() -> None:
    """A sum over the programs of two databases would mix the two, and nobody could take it apart."""
    one = ("7/1/s", "s")
    assert sources_of(CAPTURE) == {one}
    assert sources_of(replace(JOB, sources=JOB.sources[:1])) == {one}
    assert sources_of(replace(WRITE, sources=WRITE.sources[:1], snapshots=SNAPSHOT)) == {one}
    assert sources_of(SNAPSHOT) == {one}


def test_what_concerns_several_sources_names_none() -> None:
    """Under one of their names it would be counted for the wrong database; under both, twice."""
    assert sources_of(JOB) == {("7/1/s", "s"), ("7/2/s", "s"), (None, None)}
    assert sources_of(WRITE) == {("7/1/s", "s"), ("8/1/t", "t"), (None, None)}
    assert sources_of(JobStatus(1, 1, is_ready=False)) == {(None, None)}


def test_a_source_of_another_producer_has_no_slot() -> None:
    """Any text may be a source."""
    assert sources_of(replace(WRITE, sources=(WrittenSource("mine"),))) == {("mine", None)}


def test_a_source_that_a_failover_has_replaced_is_no_longer_the_writers() -> None:
    """A gap of it would keep an alert firing that nobody can clear."""
    old = replace(WRITE.sources[0], source="7/1/s")
    found = replace(WRITE, sources=(old, WrittenSource("7/2/s")))
    assert sources_of(found) == {("7/2/s", "s")}
    assert named(samples(found), "gap_shapes") == {TWO: 0}


@pytest.mark.parametrize("status", ALL, ids=lambda each: each.program)
def test_every_metric_has_the_prefix_a_help_text_and_its_unit(status: ProgramStatus) -> None:
    """As `promtool check metrics` wants it."""
    for family in _families(status, OPENMETRICS):
        assert family.name.startswith("flushtracker_")
        assert family.documentation.endswith(".")
        unit = family.name.rpartition("_")[2]
        assert family.unit == (unit if unit in {"bytes", "seconds"} and family.type == "gauge" else "")


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
@pytest.mark.parametrize("seed", range(50))
def test_any_document_is_parsed_as_what_it_says(seed: int, accept: str) -> None:
    """Hostile names are labels as they are: no line is forged, no sample is lost."""
    rng = Random(seed)  # noqa: S311  reproducible
    job = random_job(rng)
    expected = {
        (("shape", holder.shape_id), ("source", source.source)): float(holder.held_bytes)
        for source in job.sources
        for holder in source.holders
        if source.retired_by is None
    }
    assert named(samples(job, accept), "shape_held_bytes") == expected
    write, snapshot = random_write(rng), random_snapshot(rng)
    if write.snapshots is None:
        assert not [name for name, _ in samples(write, accept) if name.startswith("flushtracker_snapshot_")]
    rows = {((("source", source.source),)): float(source.rows) for source in write.sources}
    assert named(samples(write, accept), "rows_total") == rows
    left = {((("source", source.source),)): float(source.shapes_left) for source in snapshot.sources}
    assert named(samples(snapshot, accept), "snapshot_shapes_left") == left
    capture = random_capture(rng)
    assert of_program(samples(capture, accept), "changes_total")[("matched", "true"),] == capture.changes_matched


def test_a_stalled_clock_gives_no_negative_age() -> None:
    """Executors' clocks may be ahead of the server's."""
    ahead = SourceStatus("s", 1, 2, 1, 0, NOW_MS + 5_000, (Holder(NAMES[0], NOW_MS + 5_000, 1, 1, 1),))
    found = samples(JobStatus(1, 1, is_ready=True, sources=(ahead,)))
    assert list(named(found, "ack_age_seconds").values()) == [0]
    assert list(named(found, "shape_pending_seconds").values()) == [0]


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/openmetrics-text; version=x", "text/plain;version=,,;;", ";;=", "\\"]
)
def test_any_accept_header_is_answered(accept: str) -> None:
    """What a client sends cannot make the answer an error."""
    content_type, body = metrics(JOB, NOW_MS, accept)
    assert content_type.isprintable()
    assert b"flushtracker_ack_lsn" in body
