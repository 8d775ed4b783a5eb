"""What the status page advises, which is what ``flushtracker status`` advises by the same documents."""

from itertools import product
from typing import Any, Final

import pytest
from msgspec.structs import replace

from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.advice import advice
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.http.status_app import PAGE, RUNBOOK
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from tests.support.sample_status import snapshotting, writing
from tests.support.slot_overviews import overview, slot, source
from tests.support.status_pages import ACK, HELD, NOW_MS, SEEN, SOURCE, job_status

SLOTS: Final = {
    "half is held by shapes": slot(retained_bytes=2 * (SEEN - ACK)),
    "shapes hold little": slot(),
    "large": slot(retained_bytes=5_000_000_000),
    "inactive": slot(is_active=False),
    "unreserved": slot(wal_status="unreserved"),
    "lost": slot(wal_status="lost"),
}
FIRST: Final = HELD.holders[0]
SOURCES: Final = {
    "a shape": HELD,
    "shapes of one writer": source(holders=(FIRST, replace(FIRST, shape_id="b")), pending_shapes=2),
    "not for long": source(waiting_since_ms=NOW_MS - 59_000, stalled_shapes=0),
    "a gap": source(gap="a.jsonl:1: fragment 0/514+0 of source 7301/2/shapes follows 0/4B0+0"),
    "nothing": source(holders=(), pending_shapes=0, stalled_shapes=0, waiting_since_ms=None),
}
JOBS: Final = {
    "works": {},
    "hangs": {"batch_running_since_ms": NOW_MS - 3_600_000},
    "is behind": {"records_behind": 50_000},
}


def capture_of(found: SlotStatus, name: str | None = SOURCE) -> CaptureStatus:
    return CaptureStatus(NOW_MS, 0, name, is_connected=True, slot=found)


def remedies(documents: list[Any], name: str = SOURCE) -> list[str]:
    return [each.remedy for each in advice(documents).get(name, [])]


@pytest.mark.parametrize(("slot_is", "holds", "job_is"), [*product(SLOTS, SOURCES, JOBS)])
def test_the_page_advises_what_the_command_does(slot_is: str, holds: str, job_is: str) -> None:
    """By the documents alone: the page has no ack table to ask."""
    job = job_status(SOURCES[holds], **JOBS[job_is])
    seen = overview(slot=SLOTS[slot_is], job=job, row=None)
    lines = overview_lines(seen, judge(seen, Limits()))
    expected = [line.removeprefix("remedy: ") for line in lines if line.startswith("remedy: ")]
    assert remedies([job, capture_of(SLOTS[slot_is])]) == expected


def test_all_kinds_of_advice_occur() -> None:
    """Above, and each has a section of the runbook, as do the links that the page always has."""
    documents = product(SLOTS.values(), SOURCES.values(), JOBS.values())
    found = [
        each
        for slot_, source_, changes in documents
        for each in advice([job_status(source_, **changes), capture_of(slot_)]).get(SOURCE, [])
    ]
    assert {each.kind for each in found} == {
        *("slot_lost", "slot_unreserved", "slot_inactive", "source_set_aside", "batch_long", "job_behind"),
        *("restart_lsn_held", "shapes_held"),
    }
    linked = {part.split('"')[0] for part in PAGE.decode().split('href="runbook/')[1:]}
    assert len(linked) > 1
    assert linked | {each.section for each in found} <= RUNBOOK.keys()


def test_a_shape_is_judged_only_by_both_programs() -> None:
    """Its writer may have flushed what a capture or a job that is not heard of has not sent or read."""
    held, good = job_status(HELD), capture_of(SLOTS["half is held by shapes"])
    assert "remove-shape" in remedies([held, good])[0]
    for documents in (
        [held],
        [good],
        [replace(held, is_ready=False), good],
        [held, capture_of(good.slot, "7301/9/shapes")] if good.slot else [],
        [job_status(replace(HELD, retired_by="7301/9/shapes")), good],
    ):
        assert remedies(documents) == []


def test_a_slot_that_is_lost_before_its_source_is_known_has_its_advice() -> None:
    """Then capture ends before it has a source."""
    assert remedies([capture_of(SLOTS["lost"], None)], "")[0].startswith("drop the slot")


def test_shapes_that_stopped_together_are_told_from_one_that_stopped_alone() -> None:
    """Within half a minute of the one that holds most; not before the ack has waited for a minute."""
    holders = tuple(Holder(name, 1_000_000 + ms, 1, 10, 5) for name, ms in (("a", 0), ("b", 30_000), ("c", 30_001)))
    for waits_ms, stalled, is_found in ((60_000, 0, True), (59_999, 0, False), (1, 1, True)):
        held = SourceStatus(SOURCE, 5, 20, 3, stalled, 1_000_000, holders)
        job = JobStatus(1_000_000 + waits_ms, 0, is_ready=True, sources=(held,))
        found = remedies([job, capture_of(slot())])
        assert [text.partition(" stopped at")[0] for text in found] == (["a, b"] if is_found else [])


def test_shapes_of_different_writers_that_stopped_together_are_told_apart() -> None:
    """Three writers that stopped within half a minute were called one, of which nobody knew which."""
    holders = tuple(
        Holder(name, 1_000_000 + ms, 1, 10, 5, writer=writer)
        for name, ms, writer in (("a", 0, "own"), ("b", 12_000, "log"), ("c", 24_000, "other"), ("d", 24_000, "own"))
    )
    for listed, expected in ((holders[:3], None), (holders, "a, d stopped at the same moment, 1.0 min ago, ")):
        held = SourceStatus(SOURCE, 5, 20, len(listed), 0, 1_000_000, listed)
        (remedy,) = remedies([JobStatus(1_060_000, 0, is_ready=True, sources=(held,)), capture_of(slot())])
        assert ("stopped at the same moment" in remedy) == (expected is not None)
        if expected:
            assert remedy == f"{expected}so their writer (own) is down: start it, or see its log"


def test_shapes_are_judged_by_what_their_writers_say() -> None:
    """A batch of theirs that hangs is the reason; if they work, what stopped its shapes is another reason.

    Nothing of this concerns shapes of another writer.
    """
    documents = [job_status(SOURCES["shapes of one writer"]), capture_of(slot())]
    (alone,) = remedies(documents)
    assert alone.endswith("so their writer (log) is down: start it, or see its log")
    works = writing(NOW_MS, snapshots=None)
    assert remedies([*documents, works]) == [f"{alone} (the writers' job works)"]
    assert remedies([*documents, replace(works, batch_running_since_ms=NOW_MS - 240_000)]) == []
    assert remedies([*documents, snapshotting(NOW_MS)]) == [alone]
    own = tuple(replace(each, writer="own") for each in SOURCES["shapes of one writer"].holders)
    documents[0] = job_status(replace(SOURCES["shapes of one writer"], holders=own))
    for hanging_since_ms in (None, NOW_MS - 240_000):
        found = remedies([*documents, replace(works, batch_running_since_ms=hanging_since_ms)])
        assert found == [alone.replace("(log)", "(own)")]
