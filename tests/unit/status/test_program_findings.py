"""What is concluded from the documents of all programs but the tracking job, and what the command says."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from msgspec import structs

from flushtracker.errors import StatusError
from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.capture_status import CaptureStatus, EndedShape
from flushtracker.status.http.status_app import RUNBOOK
from flushtracker.status.program_findings import MOST_ERRORS, STALLED_MS, program_findings
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.serve_status import TailStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import Failure, ShapeNote, SourceShapes, UpkeepStatus, WriteStatus, WrittenSource
from tests.support.random_status import (
    NAMES,
    random_capture,
    random_failure,
    random_job,
    random_serve,
    random_snapshot,
    random_write,
)
from tests.support.sample_status import feeding, shapes_served, snapshotting, writing
from tests.support.slot_overviews import NO_JOB, overview, source
from tests.support.status_pages import ACK, HOLDER, NOW_MS, SEEN, SOURCE

WRITERS: Final = "http://127.0.0.1:9466"
SNAPSHOTS: Final = "http://127.0.0.1:9467"
SERVE: Final = "http://127.0.0.1:9471"
SINK: Final = "http://127.0.0.1:9472"
UNREAD: Final = "records of their topics are not read yet"
SILENT: Final = "does not answer (connection refused)"


def texts(status: ProgramStatus) -> dict[str, str]:
    return {each.kind: each.text for each in program_findings(status)}


def writers(**fields: Any) -> WriteStatus:
    return writing(NOW_MS, **{"snapshots": None, **fields})


def test_nothing_is_wrong_with_jobs_that_work() -> None:
    """Which are a little behind, and read a table."""
    assert texts(writing(NOW_MS)) == {}
    assert texts(snapshotting(NOW_MS)) == {}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            writers(is_ready=False),
            {"writers_not_ready": "the writers' job is starting: it has not completed a batch yet"},
        ),
        (
            writers(batch_running_since_ms=NOW_MS - 240_000),
            {"writers_batch_long": "batch 312 of the writers has run for 4.0 min"},
        ),
        (writers(batch_running_since_ms=NOW_MS - 119_000), {}),
        (
            writers(batch_at_ms=NOW_MS - 240_000),
            {"writers_behind": f"batch 311 of the writers ended 4.0 min ago, and 12 {UNREAD}"},
        ),
        (writers(batch_at_ms=NOW_MS - 240_000, records_behind=0), {}),
        (
            writers(records_behind=10_000),
            {"writers_behind": f"batch 311 of the writers ended 0.3 s ago, and 10,000 {UNREAD}"},
        ),
        (
            writers(batch_at_ms=NOW_MS - 240_000, failure=Failure(NOW_MS - 5_000, "no broker answers")),
            {
                "writers_behind": f"batch 311 of the writers ended 4.0 min ago, and 12 {UNREAD}; "
                "5.0 s ago it met: no broker answers"
            },
        ),
        (
            writers(upkeep=UpkeepStatus(1, failing_since_ms=NOW_MS - 600_000, error="disk full")),
            {"upkeep_failing": "upkeep of the shape log has failed for 10.0 min: disk full"},
        ),
        (
            writers(sources=(WrittenSource(SOURCE, gap_count=2, gaps=(ShapeNote("a", "…"), ShapeNote("b", "…"))),)),
            {"writers_gap": "changes are missing, so the writers write nothing more of a, b"},
        ),
        (
            snapshotting(NOW_MS, server_error="permission denied"),
            {"snapshots_blocked": "no snapshots are taken: permission denied"},
        ),
        (
            snapshotting(NOW_MS, progress_at_ms=NOW_MS - 1_200_000),
            {"snapshots_stuck": "the snapshots have made no progress for 20.0 min, while reading public.orders"},
        ),
        (snapshotting(NOW_MS, attempt=None, progress_at_ms=1, next_look_at_ms=NOW_MS), {}),
    ],
)
def test_each_conclusion_names_the_fact_and_its_age(status: ProgramStatus, expected: dict[str, str]) -> None:
    """Not that something may be wrong, but what is, since when."""
    assert texts(status) == expected


def test_ended_shapes_are_told_with_the_first_reason() -> None:
    ended = [EndedShape(shape_id, 1, 900, f"column {shape_id} was dropped") for shape_id in "abcd"]
    one, all_ = (CaptureStatus(0, 0, "s", is_connected=True, ended=tuple(ended[:most])) for most in (1, 4))
    assert texts(one) == {"shapes_ended": "a shape has ended: a: column a was dropped"}
    assert texts(all_) == {"shapes_ended": "shapes have ended, a, b, c and 1 more; a: column a was dropped"}
    assert next(program_findings(all_)).remedy.count("flushtracker resync a b c …") == 1


def test_an_ended_shape_is_named_once_and_as_it_is_written() -> None:
    """The page said "Acme-events has ended, acme-events because shape 'acme-events' on …", with a wrong remedy."""
    reason = "shape 'acme-events' on public.events: partition public.events_2026_12 has the replica identity DEFAULT"
    ended = EndedShape("acme-events", 1, 900, reason)
    (found,) = program_findings(CaptureStatus(0, 0, "s", is_connected=True, ended=(ended,)))
    assert found.text == f"a shape has ended: {reason}"
    assert "flushtracker resync acme-events" in found.remedy
    assert found.remedy.startswith("remove the cause")
    assert "correct the definition" not in found.remedy


def test_an_evicted_shape_has_a_text_of_its_own() -> None:
    """Its definition is right: its writer has made no progress."""
    shapes = (EndedShape("a", 1, 900, "a column was dropped"), EndedShape("-b", 1, 900, "it held 50 GB", NOW_MS))
    ended, evicted = program_findings(CaptureStatus(0, 0, "s", is_connected=True, ended=shapes))
    assert (ended.kind, evicted.kind) == ("shapes_ended", "shapes_evicted")
    assert evicted.text == "a shape was evicted: -b: it held 50 GB"
    assert "writer" in evicted.remedy
    assert "flushtracker resync -- -b" in evicted.remedy


def test_failed_snapshots_are_told_with_the_first_reason() -> None:
    failure = structs.replace(random_failure(Random(1), "orders"), tries=4, reason="permission denied for table orders")  # noqa: S311
    expected = "3 shapes have no snapshot: orders has failed 4 times: permission denied for table orders"
    status = snapshotting(NOW_MS, failed_shapes=3, failures=(failure,))
    assert texts(status) == {"snapshots_failing": expected}
    assert texts(writers(snapshots=status)) == {"snapshots_failing": expected}


def test_snapshots_that_no_program_takes_are_told() -> None:
    """With `snapshot: manual`, the default, somebody has to run `snapshot`."""
    manual = writing(NOW_MS, snapshots=None)
    found = problems(asked((WRITERS, manual)))
    text = "2 shapes have no snapshot yet (customers, orders-eu), and no program that was asked takes any, "
    assert found == {"snapshots_not_taken": (f"{text}so they have no rows from before", 0)}
    assert problems(asked((WRITERS, manual), (SNAPSHOTS, snapshotting(NOW_MS)))) == {}
    assert problems(asked((WRITERS, writing(NOW_MS)))) == {}
    whole = structs.replace(manual, sources=(structs.replace(manual.sources[0], shapes=SourceShapes(5)),))
    assert problems(asked((WRITERS, whole))) == {}


def test_an_http_server_without_a_look_fails_and_one_whose_clients_get_errors_is_told() -> None:
    """The first does not pass while the storage is away; the second is what clients repeat."""
    well = shapes_served(NOW_MS)
    assert texts(well) == {}
    line = "serve: looked at the tables 0.4 s ago   7 shapes   118 clients wait   450 answers in the last minute"
    assert line in lines(asked((SERVE, well)))
    blind = structs.replace(well, not_ready_because="the storage is away", looked_at_ms=None)
    text = "the HTTP server answers no request for a shape: the storage is away"
    assert problems(asked((SERVE, blind))) == {"serve_not_ready": (f"{text} ({SERVE})", 8)}
    few, many = (
        structs.replace(well, recent_errors=22),
        structs.replace(well, recent_errors=23, problem="a file is gone"),
    )
    assert texts(few) == {}
    text = "the HTTP server refused 23 of its 450 answers in the last minute"
    assert texts(many) == {"serve_errors": f"{text}; its last look at the tables failed: a file is gone"}
    assert judge(asked((SERVE, many)), Limits()).exit_code == 0
    alone = structs.replace(well, tail=TailStatus("no broker answers"))
    text = "clients of the HTTP server get changes from the log alone: no broker answers"
    assert texts(alone) == {"serve_tail": text}
    verdict = judge(asked((SERVE, alone)), Limits())
    assert verdict.exit_code == 0
    (found,) = (each for each in verdict.findings if each.kind == "serve_tail")
    assert found.section == "flushtrackerservetailunread"
    assert texts(structs.replace(well, tail=TailStatus())) == {}


@pytest.mark.parametrize("seed", range(50))
def test_any_document_has_conclusions(seed: int) -> None:
    """Whatever is unknown in it, and whatever names it has; of a tracking job there are none here."""
    rng = Random(seed)  # noqa: S311  repeatable
    for status in (random_write(rng), random_snapshot(rng), random_serve(rng), random_capture(rng)):
        found = list(program_findings(status))
        assert len({each.kind for each in found}) <= len(found)
        assert all(each.text and each.remedy for each in found)
        assert {each.section for each in found} <= RUNBOOK.keys()
        assert all(line.isprintable() for line in lines(asked((WRITERS, status))))
    assert [*program_findings(random_job(rng))] == []


def asked(*others: tuple[str, ProgramStatus | None], **parts: Any) -> Overview:
    """An overview in which these programs were asked, too; one without a document is silent."""
    answers: list[tuple[str, CallResult[ProgramStatus]]] = [
        (url, CallResult(NOW_MS, status, None if status else StatusError(f"{url} {SILENT}"))) for url, status in others
    ]
    return replace(overview(**parts), others=tuple(answers))


def lines(seen: Overview) -> list[str]:
    return overview_lines(seen, judge(seen, Limits()))


def problems(seen: Overview) -> dict[str, tuple[str, int]]:
    return {each.kind: (each.text, each.exit_code) for each in judge(seen, Limits()).findings}


def test_a_program_that_is_silent_is_named_by_those_that_answer() -> None:
    """Peers are URLs alone. What is neither the tracking job nor a program that answers elsewhere is the other one."""
    any_of_them = f"the writers' job or the snapshots' job or the HTTP server {WRITERS} {SILENT}"
    assert problems(asked((WRITERS, None)))["program_silent"] == (any_of_them, 8)
    only = asked((WRITERS, None), (SNAPSHOTS, snapshotting(NOW_MS)), (SERVE, shapes_served(NOW_MS)))
    assert problems(only)["program_silent"] == (f"the writers' job {WRITERS} {SILENT}", 8)
    assert (
        "remedy: start flushtracker write, or see its log; if it was fenced, another one runs: correct its address"
        in lines(only)
    )
    alone = writing(NOW_MS, snapshots=None)
    other = asked((WRITERS, alone), (SNAPSHOTS, None), (SERVE, shapes_served(NOW_MS)))
    assert problems(other)["program_silent"] == (f"the snapshots' job {SNAPSHOTS} {SILENT}", 8)
    # Where the writers' job takes the snapshots, no other one does.
    server = asked((WRITERS, writing(NOW_MS)), (SERVE, None))
    assert problems(server)["program_silent"] == (f"the HTTP server {SERVE} {SILENT}", 8)
    # Nobody but a shape that waits for it says that there is a feeder of Kafka sinks.
    waits = source(holders=(structs.replace(HOLDER, writer="kafka"),))
    feeder = asked((WRITERS, alone), (SERVE, shapes_served(NOW_MS)), (SINK, None), job=waits)
    text = f"the snapshots' job or the feeder of Kafka sinks {SINK} {SILENT}"
    assert problems(feeder)["program_silent"] == (text, 8)


def test_a_kafka_sink_names_the_group_that_holds_a_shape() -> None:
    """At once in its line; as a finding if it has not committed for longer than a sink that keeps up."""
    url = "http://127.0.0.1:9469"
    assert "sink: 1 shapes" in lines(asked((url, feeding(NOW_MS))))
    assert "sink: 1 shapes   orders waits for store: 1,200 records, since 2.0 s" in lines(
        asked((url, feeding(NOW_MS, held_ms=2_000)))
    )
    assert "sink_waits" not in problems(asked((url, feeding(NOW_MS, held_ms=30_000))))
    text = "shape orders waits for the consumer group store, which has not committed for 40.0 s and has 1,200 records "
    text += f"of topic app.public.orders to read ({url})"
    assert problems(asked((url, feeding(NOW_MS, held_ms=40_000))))["sink_waits"] == (text, 0)
    assert "sink_waits" not in problems(asked((url, feeding(NOW_MS, held_ms=40_000, problem="its topic is wrong"))))


def test_records_that_a_group_cannot_read_any_more_are_wrong() -> None:
    url = "http://127.0.0.1:9469"
    found = asked((url, feeding(NOW_MS, held_ms=40_000, lost=1)))
    text = "records of topic app.public.orders were deleted before the group store had read them, so shape orders is "
    assert problems(found)["sink_lost"] == (f"{text}never flushed past them ({url})", 1)
    assert "flushtracker resync orders" in "".join(lines(found))


def test_a_shape_that_a_sink_has_set_aside_is_wrong() -> None:
    """Only a person can help it."""
    url = "http://127.0.0.1:9469"
    found = asked((url, feeding(NOW_MS, problem="the record has 9 bytes")))
    text = f"shape orders is set aside, and holds the slot: the record has 9 bytes ({url})"
    assert problems(found)["sink_lost"] == (text, 1)
    assert "orders is set aside" in "".join(lines(found))


def test_a_sink_that_lists_only_held_shapes_says_that_there_are_others() -> None:
    held, works = feeding(NOW_MS, held_ms=40_000), feeding(NOW_MS)
    text = "the 3 other shapes of the feeder of Kafka sinks may be held, too"
    assert texts(structs.replace(held, shape_count=4))["sink_waits"] == text
    assert text not in texts(structs.replace(works, shape_count=4)).values()
    assert text not in texts(structs.replace(held, shapes=held.shapes + works.shapes, shape_count=5)).values()


TOGETHER: Final = source(
    pending_shapes=2,
    waiting_since_ms=NOW_MS - 156_000,
    holders=(HOLDER, structs.replace(HOLDER, shape_id="users", since_ms=HOLDER.since_ms + 1_000)),
)


def test_shapes_that_wait_for_writers_that_hang_are_not_guessed_at() -> None:
    """The remedy is about the batch that hangs, or the job that does not answer; no other is given."""
    hanging = writers(batch_running_since_ms=NOW_MS - 240_000)
    for other in (hanging, None):
        found = lines(asked((WRITERS, other), job=TOGETHER))
        assert not [line for line in found if "stopped at the same moment" in line], found
    assert f"batch 312 of the writers has run for 4.0 min ({WRITERS})" in lines(asked((WRITERS, hanging), job=TOGETHER))


def test_shapes_that_stopped_together_although_the_writers_work() -> None:
    """Then their writer is another one."""
    printed = lines(asked((WRITERS, writing(NOW_MS)), job=TOGETHER))
    (remedy,) = (line for line in printed if line.startswith("remedy: "))
    assert "so their writer (log) is down: start it, or see its log" in remedy
    assert remedy.endswith(f"(the writers' job at {WRITERS} works)")


def test_the_writers_job_explains_nothing_about_shapes_of_another_writer() -> None:
    """Whether it hangs, is silent, or works."""
    of_another = structs.replace(
        TOGETHER, holders=tuple(structs.replace(each, writer="own") for each in TOGETHER.holders)
    )
    for other in (writers(batch_running_since_ms=NOW_MS - 240_000), None, writers()):
        found = lines(asked((WRITERS, other), job=of_another))
        (remedy,) = (line for line in found if "stopped at the same moment" in line)
        assert remedy.endswith("so their writer (own) is down: start it, or see its log")


def test_a_line_says_how_far_the_writers_are() -> None:
    """Behind the last commit that the tracking job has seen, as long as something is pending."""
    flushed = structs.replace(writing(NOW_MS).sources[0], flushed_lsn=ACK)
    found = lines(asked((WRITERS, writers(sources=(flushed,)))))
    assert (
        f"writers: batch 311 ended 0.3 s ago   flushed 0/37F1C5E, {SEEN - ACK} B behind   1,234 rows/s   "
        "12 records behind   2 without snapshot"
    ) in found
    assert "snapshots: 2 shapes left   public.orders: 40 of 100 parts, 1,000,000 rows" in lines(
        asked((SNAPSHOTS, snapshotting(NOW_MS)))
    )


def test_a_job_without_figures_is_told_of_too() -> None:
    """Right after its start."""
    found = lines(asked((WRITERS, WriteStatus(NOW_MS, NOW_MS, is_ready=False)), (SNAPSHOTS, SnapshotStatus(1, 1))))
    assert "writers: no batch yet   0 rows/s" in found
    assert "snapshots: 0 shapes left" in found


def test_a_limit_or_a_lost_slot_comes_before_a_silent_program() -> None:
    """As before a silent tracking job."""
    silent = asked((WRITERS, None))
    assert judge(silent, Limits()).exit_code == 8
    assert judge(silent, Limits(retained_bytes=1)).exit_code == 1
    gap = WrittenSource(SOURCE, gap_count=1, gaps=(ShapeNote(NAMES[1], "…"),))
    assert judge(asked((WRITERS, writers(sources=(gap,)))), Limits()).exit_code == 1
    assert judge(asked((WRITERS, writers()), job=NO_JOB), Limits()).exit_code == 8


def test_alerts_have_the_thresholds_of_the_findings() -> None:
    """Otherwise an alert fires for what ``flushtracker status`` calls well, or the reverse."""
    rules = (Path(__file__).parents[3] / "conf" / "monitoring" / "alerts.yaml").read_text()
    assert f"flushtracker_snapshot_stalled_seconds > {STALLED_MS // 1_000} " in rules
    assert f"(rate(flushtracker_serve_answers_total[5m])) > {MOST_ERRORS}\n" in rules
