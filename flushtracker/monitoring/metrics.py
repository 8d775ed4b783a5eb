"""``/metrics``: a document in the exposition format that the client accepts."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from flushtracker import __version__
from flushtracker.monitoring.capture_metrics import capture_metrics
from flushtracker.monitoring.job_metrics import job_metrics
from flushtracker.monitoring.metric_families import gauge
from flushtracker.monitoring.program_status import ProgramStatus
from flushtracker.status.capture_status import CAPTURE
from flushtracker.status.job_status import TRACK, JobStatus


def metrics(status: ProgramStatus, now_ms: int, accept: str = "") -> tuple[str, bytes]:
    """The content type and the text: OpenMetrics if ``accept`` allows it, otherwise Prometheus' own format."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # A version that is not a number.
        encoder, content_type = choose_encoder("")
    return content_type, encoder(_Families(status, now_ms))


class _Families(Collector):
    """A collector of its own for each answer, so that nothing is registered for the whole process."""

    def __init__(self, status: ProgramStatus, now_ms: int) -> None:
        self._status = status
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        status = self._status
        if isinstance(status, JobStatus):
            program = TRACK
            yield from job_metrics(status, self._now_ms)
        else:
            program = CAPTURE
            yield from capture_metrics(status)
        yield gauge("start_timestamp_seconds", "When the program started.", status.started_at_ms / 1_000)
        yield gauge(
            "build_info",
            "Always 1; the labels say which program this is, and its version.",
            labels=("program", "version"),
            samples=[((program, __version__), 1)],
        )
