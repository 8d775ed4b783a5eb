"""The page in a real browser: idle, stalled, with the job dead, on a phone and in the dark.

Each test leaves a screenshot in ``data/verify``, to be looked at.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from flushtracker.status.http.peers import fetch
from flushtracker.status.job_status import JobStatus
from tests.support.browser import Page, browser
from tests.support.sample_status import capturing, idle_job, shapes_served, stalled_job, writing
from tests.support.seeds import every
from tests.support.status_program import StatusProgram
from tests.support.waiting import wait_until

pytestmark = every(3, 2)

_COLOUR: Final = "return getComputedStyle(document.getElementById('state')).color"


def _busy_job(now_ms: int) -> JobStatus:
    """Shapes are pending, and the ack moves."""
    status = stalled_job(now_ms)
    source = replace(status.sources[0], stalled_shapes=0, waiting_since_ms=now_ms)
    return replace(status, sources=(source,))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[StatusProgram]:
    with StatusProgram(tmp_path, "capture", capturing(_now_ms())) as program:
        yield program


def _job(tmp_path: Path, capture: StatusProgram, *, stalled: bool, is_process: bool = False) -> StatusProgram:
    status = stalled_job(_now_ms()) if stalled else idle_job(_now_ms())
    return StatusProgram(tmp_path, "track", status, [capture.url], is_process=is_process)


def _wait_for_peer(page: Page) -> None:
    wait_until(lambda: page.values().get("retained-bytes"), "the page has heard of capture", 60)


def _expected(job: dict[str, Any], capture: dict[str, Any]) -> dict[str, object]:
    """What the page must show of these two documents, by the ids of its elements."""
    (source,) = job["sources"]
    return {
        "ack-lsn": source["ack_lsn"],
        "last-seen-lsn": source["last_seen_lsn"],
        "unacknowledged-bytes": source["unacknowledged_bytes"],
        "waiting-since": source["waiting_since_ms"],
        "pending-shapes": source["pending_shapes"],
        "stalled-shapes": source["stalled_shapes"],
        "records-behind": job["records_behind"],
        "dead-letters": job["dead_letters"],
        "events": job["events"],
        "state-bytes": job["state_bytes"],
        "batch": job["batch_at_ms"],
        "written-lsn": capture["slot"]["written_lsn"],
        "retained-bytes": capture["slot"]["retained_bytes"],
        "safe-wal-bytes": capture["slot"]["safe_wal_bytes"],
        "wal-status": capture["slot"]["wal_status"],
        "received-lsn": capture["received_lsn"],
        "published-lsn": capture["published_lsn"],
        "confirmed-lsn": capture["confirmed_lsn"],
        "shapes": capture["shapes"],
        "shapes-refused": capture["shapes_refused"],
        "queue-bytes": capture["publish_queue_bytes"],
        "reconnects": capture["reconnects"],
    }


def _assert_shows_documents(page: Page, job: StatusProgram, capture: StatusProgram) -> None:
    """Every number in the DOM is that of ``/status.json`` of the one or the other program."""
    expected = _expected(job.document(), capture.document())
    shown = page.values()
    assert {name: shown.get(name) for name in expected} == {
        name: "" if value is None else str(value) for name, value in expected.items()
    }
    (source,) = job.document()["sources"]
    holders = [
        {
            "shape": holder["shape"],
            "since": str(holder["since_ms"]),
            "holds": str(holder["held_bytes"]),
            "pending": str(holder["pending_transactions"]),
            "ack-if-removed": holder["ack_if_removed"],
        }
        for holder in source["holders"]
    ]
    assert page.rows("holders") == holders
    assert page.rows("refused") == capture.document()["refused"]


def test_idle_page_has_the_numbers_of_the_documents(page: Page, tmp_path: Path, capture: StatusProgram) -> None:
    with _job(tmp_path, capture, stalled=False) as job:
        page.open(job.url)
        page.wait_for_state("idle")
        _wait_for_peer(page)
        _assert_shows_documents(page, job, capture)
        assert page.text("silent") == ""
        page.save("idle")
        assert page.errors() == []


def test_stalled_page_names_the_shape_that_holds_most(page: Page, tmp_path: Path, capture: StatusProgram) -> None:
    """First in words, also that another one stopped with it; then in the table, with what its removal would give."""
    with _job(tmp_path, capture, stalled=True) as job:
        page.open(job.url)
        page.wait_for_state("stalled")
        _wait_for_peer(page)
        _assert_shows_documents(page, job, capture)
        assert "orders-open, customers stopped at the same moment" in page.text("advice")
        section = page.script("return document.querySelector('#advice a').href")
        assert section == f"{job.url}/runbook/flushtrackerackstuck"
        assert fetch(section, 10).decode().startswith("### FlushtrackerAckStuck\n")
        assert "137 B" in page.text("holders")
        assert "no change" in page.text("holders"), "of the second shape, before which the first one stands"
        page.save("stalled")
        assert page.errors() == []


def test_page_says_that_a_source_is_set_aside(page: Page, tmp_path: Path, capture: StatusProgram) -> None:
    """With the reason and what to do; it is not idle, although no shape of it is listed."""
    gap = "fragments partition 0 Kafka offset 812: fragment 0/FA0+0 follows 0/BB8+0, but the chain ends at 0/7D0"
    status = idle_job(_now_ms())
    status = replace(status, sources=tuple(replace(each, gap=gap) for each in status.sources))
    with StatusProgram(tmp_path, "track", status, [capture.url]) as job:
        page.open(job.url)
        page.wait_for_state("alarm")
        _wait_for_peer(page)
        assert page.text("state") == f"Set aside, no further ack: {gap}"
        assert page.text("no-holders") == "Unknown: the source is set aside."
        wait_until(lambda: "run flushtracker track once with --recover" in page.text("advice"), "the advice", 60)
        page.save("set aside")
        assert page.errors() == []


def test_page_shows_the_writers_and_what_is_wrong_with_them(page: Page, tmp_path: Path, capture: StatusProgram) -> None:
    """A batch that hangs is named, with its age, instead of shapes that would have to be guessed at."""
    hanging = writing(_now_ms(), batch_running_since_ms=_now_ms() - 240_000)
    with (
        StatusProgram(tmp_path, "write", hanging, is_process=True) as writers,
        StatusProgram(tmp_path, "track", stalled_job(_now_ms()), [capture.url, writers.url]) as job,
    ):
        page.open(job.url)
        wait_until(lambda: "Batch 312 of the writers has run for 4.0 min" in page.text("state"), "the batch", 60)
        document = writers.document()
        (source,) = document["sources"]
        shown = page.values()
        assert {name: shown[name] for name in shown if name.startswith(("writers-", "snapshots-"))} == {
            "writers-batch": str(document["batch_at_ms"]),
            "writers-flushed": source["flushed_lsn"],
            "writers-behind": "0",
            "writers-after": str(source["written_after_ms"]),
            "writers-rows": str(document["rows_per_s"]),
            "writers-records-behind": str(document["records_behind"]),
            "writers-live": "5",
            "writers-without-snapshot": "2",
            "writers-ended": "2",
            "writers-gaps": "0",
            "writers-started": str(document["started_at_ms"]),
            "snapshots-left": "2",
            "snapshots-waiting": "0",
            "snapshots-failed": "0",
            "snapshots-attempt": "public.orders",
            "snapshots-parts": "40",
            "snapshots-rows": "1000000",
            "snapshots-seconds-left": "90",
            "snapshots-progress": str(document["snapshots"]["progress_at_ms"]),
        }
        assert "stop the writers' job and start it again" in page.text("conclusions")
        page.save("writers_hang")
        writers.kill()
        wait_until(lambda: "The writers' job does not answer" in page.text("state"), "the writers are dead", 60)
        page.save("writers_dead")
        assert page.errors() == []


def test_page_shows_the_server_of_shapes_and_says_when_it_is_blind(
    page: Page, tmp_path: Path, capture: StatusProgram
) -> None:
    """Its own page, and as a peer on that of the tracking job, which is well."""
    with StatusProgram(tmp_path, "serve", shapes_served(_now_ms())) as server:
        page.open(server.url)
        page.wait_for_state("idle")
        assert page.text("state") == "The HTTP server runs"
        with StatusProgram(tmp_path, "track", idle_job(_now_ms()), [capture.url, server.url]) as job:
            page.open(job.url)
            page.wait_for_state("idle")
            wait_until(lambda: page.values().get("serve-waiting") == "118", "the page has heard of the server", 60)
            assert page.text("serve-errors") == "0"
            server.show(shapes_served(_now_ms(), not_ready_because="the storage is away"))
            page.wait_for_state("alarm")
            assert page.text("state") == "The HTTP server answers no request for a shape: the storage is away"
            assert page.text("state") in page.text("conclusions")
            assert "See that reason" in page.text("conclusions")
            page.save("serve")
        assert page.errors() == []


def test_page_follows_the_program_without_a_reload(page: Page, tmp_path: Path, capture: StatusProgram) -> None:
    with _job(tmp_path, capture, stalled=False) as job:
        page.open(job.url)
        page.wait_for_state("idle")
        colour = page.script(_COLOUR)
        assert page.text("chart-title").endswith(" s: bytes behind the end of the WAL"), "not an hour that it has not"
        job.show(stalled_job(_now_ms()))
        page.wait_for_state("stalled")
        assert page.script(_COLOUR) != colour
        job.show(_busy_job(_now_ms()))
        page.wait_for_state("busy")
        assert page.script(_COLOUR) == colour, "as green as when nothing is pending"
        assert page.text("advice") == ""
        unlimited = capturing(_now_ms())
        assert unlimited.slot is not None
        capture.show(replace(unlimited, slot=replace(unlimited.slot, safe_wal_bytes=None)))
        wait_until(lambda: page.text("safe-wal-bytes") == "until the disk is full", "the slot without a limit", 60)
        job.show(idle_job(_now_ms()))
        page.wait_for_state("idle")
        assert page.rows("holders") == []


def test_page_says_that_the_job_is_dead_and_keeps_its_last_figures(
    page: Page, tmp_path: Path, capture: StatusProgram
) -> None:
    """Old figures that look new would be worse than none."""
    with _job(tmp_path, capture, stalled=True, is_process=True) as job:
        page.open(job.url)
        page.wait_for_state("stalled")
        _wait_for_peer(page)
        before = page.rows("holders"), page.values()["ack-lsn"]
        job.kill()
        page.wait_for_state("silent")
        assert "the tracking job has ended or is unreachable" in page.text("silent")
        assert (page.rows("holders"), page.values()["ack-lsn"]) == before
        page.save("job_dead")
