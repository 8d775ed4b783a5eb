"""A real Prometheus with the shipped rules, sixty times faster, and programs that have made-up documents."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest
from msgspec.structs import replace

from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_status import JobStatus
from flushtracker.status.serve_status import AnswerCount, ServeStatus
from flushtracker.status.write_status import WriteStatus
from tests.support.prometheus_server import PrometheusServer
from tests.support.sample_status import capturing, idle_job, shapes_served, snapshotting, stalled_job, writing
from tests.support.seeds import every
from tests.support.status_program import StatusProgram
from tests.support.waiting import wait_until

pytestmark = every(3, 0)

_DASHBOARD: Final = Path(__file__).parents[2] / "conf" / "monitoring" / "grafana_dashboard.json"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _idle_job() -> JobStatus:
    return replace(idle_job(_now_ms()), dead_letters=0)


def _writing(**fields: Any) -> WriteStatus:
    """Its snapshots are not made to progress, so that is in the future; they are being read."""
    now_ms = _now_ms()
    snapshots = replace(snapshotting(now_ms + 86_400_000), attempt=snapshotting(now_ms).attempt)
    return writing(now_ms, **{"records_behind": 0, "snapshots": snapshots, **fields})


def _capturing(**fields: Any) -> CaptureStatus:
    return replace(capturing(_now_ms(), **fields), evicted=0, evictions=(), shapes_refused=0, refused=())


def _answering(status: ServeStatus, now_ms: int, count: int) -> ServeStatus:
    """After ``count`` moments, in each of which it has given all of its answers."""
    answers = tuple(AnswerCount(each.status, each.count * count) for each in status.answers)
    looked_at_ms = status.looked_at_ms if status.problem else now_ms
    return replace(status, at_ms=now_ms, looked_at_ms=looked_at_ms, answers=answers)


@dataclass
class _Watched:
    """All programs, and a Prometheus that scrapes them. They work, as far as their numbers show."""

    track: StatusProgram
    write: StatusProgram
    serve: StatusProgram
    capture: StatusProgram
    prometheus: PrometheusServer
    job: JobStatus
    writing: WriteStatus
    serving: ServeStatus
    capturing: CaptureStatus
    is_job_working: bool = True

    def __post_init__(self) -> None:
        self._stopping = Event()
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Capture publishes, the job takes what it publishes, and both say when they last looked."""
        count, started_at_ms = 0, _now_ms() - 7_200_000
        while not self._stopping.wait(0.5):
            now_ms, count = _now_ms(), count + 1  # Never from zero again, whatever a test shows.
            job, capture = self.job, self.capturing
            if self.is_job_working:
                events = job.events + 100 * count
                sources = tuple(replace(source, events=events) for source in job.sources)
                self.track.show(replace(job, at_ms=now_ms, started_at_ms=started_at_ms, events=events, sources=sources))
            written = tuple(replace(source, cut_at_ms=now_ms) for source in self.writing.sources)
            self.write.show(replace(self.writing, at_ms=now_ms, started_at_ms=started_at_ms, sources=written))
            self.serve.show(_answering(replace(self.serving, started_at_ms=started_at_ms), now_ms, count))
            assert capture.slot is not None
            assert capture.published_lsn is not None
            slot = replace(capture.slot, at_ms=now_ms)
            lsn = capture.published_lsn + 1_000 * count
            seen = replace(capture, at_ms=now_ms, started_at_ms=started_at_ms, slot=slot, published_lsn=lsn)
            self.capture.show(replace(seen, acks_read_at_ms=now_ms))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Watched]:
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        StatusProgram(folder, "track", _idle_job(), is_process=True) as track,
        StatusProgram(folder, "write", _writing(), is_process=True) as write,
        StatusProgram(folder, "serve", shapes_served(_now_ms()), is_process=True) as serve,
        StatusProgram(folder, "capture", _capturing()) as capture,
    ):
        targets = {
            "flushtracker_track": f"127.0.0.1:{track.port}",
            "flushtracker_write": f"127.0.0.1:{write.port}",
            "flushtracker_serve": f"127.0.0.1:{serve.port}",
            "flushtracker_capture": f"127.0.0.1:{capture.port}",
        }
        with PrometheusServer(folder, targets) as prometheus:
            documents = _idle_job(), _writing(), shapes_served(_now_ms()), _capturing()
            watched = _Watched(track, write, serve, capture, prometheus, *documents)
            yield watched
            watched.stop()


@pytest.fixture
def watched(programs: _Watched) -> _Watched:
    """All programs idle, and without an alert; before its first scrape a target is absent."""
    prometheus = programs.prometheus
    programs.job, programs.capturing, programs.is_job_working = _idle_job(), _capturing(), True
    programs.writing, programs.serving = _writing(), shapes_served(_now_ms())
    wait_until(lambda: len(prometheus.query("up == 1")) == 4 and not prometheus.alerts(), "no alert", 60)
    return programs


def test_no_alert_fires_while_all_is_well(watched: _Watched) -> None:
    """For longer than any rule waits: the longest is five minutes over five, which are ten seconds here."""
    deadline = time.monotonic() + 14
    while time.monotonic() < deadline:
        assert watched.prometheus.firing() == set()
        time.sleep(0.5)


def test_alerts_fire_when_the_ack_is_stuck_and_the_slot_fills_and_is_lost(watched: _Watched) -> None:
    """The stuck ack's clears when it moves."""
    watched.job = replace(stalled_job(_now_ms()), dead_letters=0)
    watched.prometheus.wait_for("FlushtrackerAckStuck", firing=True)
    assert watched.prometheus.firing() == {"FlushtrackerAckStuck"}
    watched.capturing = _capturing(retained_bytes=9_000_000_000, wal_status="unreserved")
    watched.job = _idle_job()
    for alert in ("FlushtrackerSlotRetained", "FlushtrackerSlotUnreserved"):
        watched.prometheus.wait_for(alert, firing=True)
    watched.prometheus.wait_for("FlushtrackerAckStuck", firing=False)
    watched.capturing = _capturing(wal_status="lost")
    watched.prometheus.wait_for("FlushtrackerSlotLost", firing=True)
    watched.capturing = _capturing()
    wait_until(lambda: not watched.prometheus.firing(), "nothing fires any more", 60)


def test_alerts_fire_when_programs_are_dead_or_do_not_work(watched: _Watched) -> None:
    """For each program by its own alert, which clears when it works again.

    Capture goes on publishing, so what a dead job leaves is noticed as well; and what one leaves that ends at each
    start, as after a gap.
    """

    def wait_for_alone(*alerts: str) -> None:
        for alert in alerts:
            watched.prometheus.wait_for(alert, firing=True)
        assert watched.prometheus.firing() == {*alerts}

    programs = watched.track, watched.write, watched.serve
    for program in programs:
        program.kill()
    wait_for_alone("FlushtrackerTargetDown", "FlushtrackerGap", "FlushtrackerWriterDown", "FlushtrackerServeDown")
    for program in programs:
        program.start()
    wait_until(lambda: not watched.prometheus.firing(), "nothing fires any more", 60)
    watched.is_job_working = False
    watched.writing = _writing(batch_running_since_ms=_now_ms())
    watched.serving = shapes_served(_now_ms(), problem="the storage is away")
    wait_for_alone("FlushtrackerGap", "FlushtrackerWriterStuck", "FlushtrackerServeBehind")
    watched.is_job_working, watched.writing = True, _writing()
    watched.serving = shapes_served(_now_ms(), answers=(AnswerCount(200, 54_000), AnswerCount(503, 6_000)))
    wait_for_alone("FlushtrackerServeErrors")
    watched.serving = shapes_served(_now_ms())
    watched.prometheus.wait_for("FlushtrackerServeErrors", firing=False)


def test_every_query_of_the_dashboard_has_an_answer(watched: _Watched) -> None:
    """Without an error, and with at least one series; Grafana's own variables are set as it would set them."""
    watched.job = replace(stalled_job(_now_ms()), dead_letters=0)
    wait_until(lambda: watched.prometheus.query("flushtracker_shape_held_bytes"), "a shape holds WAL", 60)
    time.sleep(3)  # A rate needs two scrapes.
    dashboard = json.loads(_DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    empty = [
        query
        for query in queries
        if not watched.prometheus.query(
            query.replace("$__rate_interval", "10s").replace("$__range", "60s").replace("$source", ".*")
        )
    ]
    assert empty == []


def test_alert_fires_for_a_dead_letter(watched: _Watched) -> None:
    """The last of these tests: it would clear only after an hour, which is a minute here."""
    watched.job = replace(watched.job, dead_letters=1)
    watched.prometheus.wait_for("FlushtrackerDeadLetters", firing=True)
    assert watched.prometheus.firing() == {"FlushtrackerDeadLetters"}
