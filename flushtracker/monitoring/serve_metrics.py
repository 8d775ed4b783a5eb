"""The metrics of the HTTP server of shapes."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from flushtracker.monitoring.families import counter, gauge, seconds
from flushtracker.status.serve_status import ServeStatus


def serve_metrics(status: ServeStatus) -> Iterator[Metric]:
    """What the server has besides what all programs have."""
    yield from _looks(status)
    yield from _clients(status)
    yield from _reads(status)


def _looks(status: ServeStatus) -> Iterator[Metric]:
    looked_s = seconds(status.looked_at_ms)
    yield gauge("serve_look_timestamp_seconds", "When the last look at the tables began that succeeded.", looked_s)
    yield counter("serve_looks", "Looks at the tables that succeeded.", status.looks)
    yield counter("serve_failed_looks", "Looks at the tables that failed.", status.failed_looks)
    yield gauge("serve_log_version", "The version of the shape log in the last look.", status.log_version)
    yield gauge("serve_shapes", "Shapes that the registry table has, also ended ones.", status.shapes)
    yield gauge("serve_watched_shapes", "Shapes that clients have lately asked for.", status.watched_shapes)


def _clients(status: ServeStatus) -> Iterator[Metric]:
    yield gauge("serve_connections", "Connections that are open.", status.connections)
    yield gauge("serve_waiting_clients", "Clients that wait for a change.", status.waiting_clients)
    answers = [((str(each.status),), each.count) for each in status.answers]
    yield counter("serve_answers", "Answers by status.", labels=("status",), samples=answers)
    yield counter("serve_sent_bytes", "Bytes of answers without their headers.", status.sent_bytes)


def _reads(status: ServeStatus) -> Iterator[Metric]:
    running = [(("log",), status.running_log_reads), (("rows",), status.running_row_reads)]
    yield gauge("serve_running_reads", "Reads that run or wait.", labels=("of",), samples=running)
    reads = [(("log",), status.log_reads), (("rows",), status.row_reads)]
    yield counter("serve_reads", "Reads of logs, and of rows for new clients.", labels=("of",), samples=reads)
    yield counter("serve_refused_reads", "Reads that were refused because too many waited.", status.refused_reads)
    kept = [(("pages",), status.kept_pages), (("states",), status.kept_states)]
    yield gauge("serve_kept", "Parts of logs, and rows of shapes, that are kept.", labels=("of",), samples=kept)
    yield gauge("serve_kept_memory_bytes", "Memory that kept parts take.", status.kept_memory_bytes)
    yield gauge("serve_kept_disk_bytes", "Temporary files that are kept.", status.kept_disk_bytes)
