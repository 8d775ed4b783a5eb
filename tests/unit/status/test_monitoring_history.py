"""The last hour of each source, from the documents of the job and of capture together."""

from typing import Final

from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.http.page_data import LsnHistory, PageData
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.status.program_status import ProgramStatus

SLOT: Final = SlotStatus(
    "s",
    1,
    is_active=True,
    wal_status="reserved",
    written_lsn=0x40,
    confirmed_lsn=0x10,
    retained_bytes=1,
    safe_wal_bytes=None,
)
CAPTURE: Final = CaptureStatus(1, 1, "a", is_connected=True, slot=SLOT, acknowledged_lsn=0x1F, confirmed_lsn=0x10)


def job(*sources: str) -> JobStatus:
    return JobStatus(1, 1, is_ready=True, sources=tuple(SourceStatus(s, 0x20, 0x30, 0, 0, None, ()) for s in sources))


def test_a_point_has_what_both_programs_say_of_the_source() -> None:
    """Written and confirmed by capture, seen and acknowledged by the job; in whichever order they come."""
    orders: list[list[ProgramStatus]] = [[job("a", "b"), CAPTURE], [CAPTURE, job("a", "b")]]
    for statuses in orders:
        history = LsnHistory()
        history.add(1_000, statuses)
        assert history.to_json() == {
            "a": [[1_000, "0/40", "0/30", "0/20", "0/10"]],
            "b": [[1_000, None, "0/30", "0/20", None]],
        }


def test_capture_alone_knows_the_ack_that_it_has_read() -> None:
    history = LsnHistory()
    history.add(1_000, [CAPTURE, CaptureStatus(1, 1, None, is_connected=False)])
    assert history.to_json() == {"a": [[1_000, "0/40", None, "0/1F", "0/10"]]}


def test_an_hour_is_kept() -> None:
    history = LsnHistory()
    for at_ms in range(0, 5_000_000, 10_000):
        history.add(at_ms, [job("a")])
    times = [point[0] for point in history.to_json()["a"]]
    assert times == list(range(1_400_000, 5_000_000, 10_000))


def test_a_source_is_forgotten_an_hour_after_its_last_point() -> None:
    history = LsnHistory()
    history.add(0, [job("a")])
    history.add(3_600_000, [job("b")])
    assert set(history.to_json()) == {"a", "b"}
    history.add(3_610_000, [job("b")])
    assert set(history.to_json()) == {"b"}


def test_sources_beyond_the_limit_are_left_out() -> None:
    """Memory is bounded, and the sources that are there stay."""
    history = LsnHistory()
    history.add(0, [job("first")])
    history.add(1, [job(*map(str, range(100)), "first")])
    assert len(history.to_json()) == 8
    assert len(history.to_json()["first"]) == 2


def test_a_program_that_cannot_be_read_leaves_a_hole_and_not_an_error() -> None:
    known: list[JobStatus] = []
    data = PageData(lambda: known[0], ())
    data.add_point()
    known.append(job("a"))
    data.add_point()
    assert len(data.to_json()["history"]["a"]) == 1
