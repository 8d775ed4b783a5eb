"""The metrics of the HTTP server of shapes."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from flushtracker import __version__
from flushtracker.monitoring.families import counter, gauge, seconds
from flushtracker.status.serve_status import SERVE, ServeStatus


def serve_metrics(status: ServeStatus, accept: str = "") -> tuple[str, bytes]:
    """The content type and the text, as :func:`flushtracker.monitoring.metrics.metrics`."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # It asks for a version that is not a number.
        encoder, content_type = choose_encoder("")
    return content_type, encoder(_Families(status))


class _Families(Collector):
    def __init__(self, status: ServeStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for family in (*self._looks(), *self._clients(), *self._reads()):
            family.samples = [sample._replace(labels={"program": SERVE, **sample.labels}) for sample in family.samples]
            yield family

    def _looks(self) -> Iterator[Metric]:
        status = self._status
        yield gauge("ready", "Whether the program does its work, as /readyz says.", status.not_ready_because is None)
        yield gauge("start_timestamp_seconds", "When the program started.", seconds(status.started_at_ms))
        version = [((__version__,), 1)]
        yield gauge("build_info", "Always 1; the labels say which program it is.", labels=("version",), samples=version)
        looked_s = seconds(status.looked_at_ms)
        yield gauge("serve_look_timestamp_seconds", "When the last look at the tables began that succeeded.", looked_s)
        yield counter("serve_looks", "Looks at the tables that succeeded.", status.looks)
        yield counter("serve_failed_looks", "Looks at the tables that failed.", status.failed_looks)
        yield gauge("serve_log_version", "The version of the shape log in the last look.", status.log_version)
        yield gauge("serve_shapes", "Shapes that the registry table has, also ended ones.", status.shapes)
        yield gauge("serve_watched_shapes", "Shapes that clients have lately asked for.", status.watched_shapes)

    def _clients(self) -> Iterator[Metric]:
        status = self._status
        yield gauge("serve_connections", "Connections that are open.", status.connections)
        yield gauge("serve_waiting_clients", "Clients that wait for a change.", status.waiting_clients)
        answers = [((str(code),), count) for code, count in status.answers]
        yield counter("serve_answers", "Answers by status.", labels=("status",), samples=answers)
        yield counter("serve_sent_bytes", "Bytes of answers without their headers.", status.sent_bytes)

    def _reads(self) -> Iterator[Metric]:
        status = self._status
        running = [(("log",), status.running_log_reads), (("rows",), status.running_row_reads)]
        yield gauge("serve_running_reads", "Reads that run or wait.", labels=("of",), samples=running)
        reads = [(("log",), status.log_reads), (("rows",), status.row_reads)]
        yield counter("serve_reads", "Reads of logs, and of rows for new clients.", labels=("of",), samples=reads)
        yield counter("serve_refused_reads", "Reads that were refused because too many waited.", status.refused_reads)
        kept = [(("pages",), status.kept_pages), (("states",), status.kept_states)]
        yield gauge("serve_kept", "Parts of logs, and rows of shapes, that are kept.", labels=("of",), samples=kept)
        yield gauge("serve_kept_memory_bytes", "Memory that kept parts take.", status.kept_memory_bytes)
        yield gauge("serve_kept_disk_bytes", "Temporary files that are kept.", status.kept_disk_bytes)
