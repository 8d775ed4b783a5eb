"""``ServeStatus``: the document of the HTTP server of shapes."""

from typing import Annotated

from flushtracker.status.document import Document, Natural, StatusObject, about, counter, gauge


class AnswerCount(StatusObject, frozen=True):
    """The answers with an HTTP status, since the server's start."""

    status: Annotated[int, about("the HTTP status")]
    count: Annotated[
        Natural,
        counter(
            "serve_answers",
            "how many",
            "answers by HTTP status, also those to probes; one that is cut off counts once more, by what went wrong",
        ),
    ]


class TailStatus(StatusObject, frozen=True):
    """The hot tail, if one is configured."""

    problem: Annotated[
        str | None,
        gauge(
            "serve_tail_is_read",
            "why the tail is not read, so that clients get changes from the log alone; `null` if it is",
            "1 if the tail is read, 0 if clients get changes from the log alone",
            value=lambda problem: int(problem is None),
        ),
    ] = None
    lag_ms: Annotated[
        Natural | None,
        gauge(
            "serve_tail_lag_seconds",
            "how old the oldest record was in the last batch, when clients were woken; `null` before the first",
            "how old the oldest record was in the last batch, when clients were woken",
        ),
    ] = None
    records: Annotated[Natural, counter("serve_tail_records", "records of shape changes that were read")] = 0
    skipped_records: Annotated[
        Natural, counter("serve_tail_skipped_records", "those of them whose shape nobody asks for")
    ] = 0
    unreadable_records: Annotated[
        Natural, counter("serve_tail_unreadable_records", "those of them that could not be read")
    ] = 0
    outages: Annotated[
        Natural,
        counter("serve_tail_outages", "how often the topic could not be read on, and all tails were dropped"),
    ] = 0
    resets: Annotated[
        Natural,
        counter(
            "serve_tail_resets", "how often a shape's tail was dropped, after a gap or for what only the log serves"
        ),
    ] = 0
    answers: Annotated[Natural, counter("serve_tail_answers", "answers with changes from the tail")] = 0
    unlinked: Annotated[
        Natural, counter("serve_tail_unlinked", "answers for which only the log could tell what follows")
    ] = 0
    memory_bytes: Annotated[Natural, gauge("serve_tail_memory_bytes", "memory that the tails of all shapes take")] = 0


class ServeStatus(Document, frozen=True, tag="serve"):
    """What the HTTP server of shapes says of itself."""

    source: Annotated[str | None, about("whose shapes are served, by the server's configuration; `null` for any")] = (
        None
    )
    not_ready_because: Annotated[str | None, about("why no request for a shape can be answered; `null` if it can")] = (
        None
    )
    problem: Annotated[str | None, about("why the last look at the tables found nothing; `null` if it did")] = None
    looked_at_ms: Annotated[
        Natural | None,
        gauge(
            "serve_look_timestamp_seconds",
            "when the last look at the tables that succeeded began; `null` if none has",
            "when the last look at the tables that succeeded began",
        ),
    ] = None
    looks: Annotated[Natural, counter("serve_looks", "looks at the tables that succeeded")] = 0
    failed_looks: Annotated[Natural, counter("serve_failed_looks", "looks at the tables that failed")] = 0
    log_version: Annotated[int, gauge("serve_log_version", "the version of the shape log in the last look")] = 0
    shapes: Annotated[Natural, gauge("serve_shapes", "shapes that the registry table has, also ended ones")] = 0
    watched_shapes: Annotated[Natural, gauge("serve_watched_shapes", "shapes that clients have lately asked for")] = 0
    connections: Annotated[Natural, gauge("serve_connections", "connections that are open")] = 0
    waiting_clients: Annotated[Natural, gauge("serve_waiting_clients", "clients that wait for a change")] = 0
    answers: Annotated[tuple[AnswerCount, ...], about("answers by HTTP status")] = ()
    recent_answers: Annotated[Natural, about("answers in the last minute")] = 0
    recent_errors: Annotated[Natural, about("those of them with a status from 500 on")] = 0
    sent_bytes: Annotated[Natural, counter("serve_sent_bytes", "bytes of answers without their headers")] = 0
    running_log_reads: Annotated[
        Natural,
        gauge("serve_running_reads", "reads of logs that run or wait", "reads that run or wait", of="log"),
    ] = 0
    running_row_reads: Annotated[
        Natural, gauge("serve_running_reads", "reads of rows for new clients that run or wait", of="rows")
    ] = 0
    log_reads: Annotated[
        Natural, counter("serve_reads", "reads of logs", "reads of logs, and of rows for new clients", of="log")
    ] = 0
    row_reads: Annotated[Natural, counter("serve_reads", "reads of rows for new clients", of="rows")] = 0
    refused_reads: Annotated[
        Natural, counter("serve_refused_reads", "reads that were refused because too many waited")
    ] = 0
    kept_pages: Annotated[
        Natural,
        gauge(
            "serve_kept", "parts of logs that are kept", "parts of logs, and rows of shapes, that are kept", of="pages"
        ),
    ] = 0
    kept_states: Annotated[Natural, gauge("serve_kept", "rows of shapes that are kept", of="states")] = 0
    kept_memory_bytes: Annotated[Natural, gauge("serve_kept_memory_bytes", "memory that kept parts take")] = 0
    kept_disk_bytes: Annotated[Natural, gauge("serve_kept_disk_bytes", "temporary files that are kept")] = 0
    on_demand_definitions: Annotated[
        Natural, gauge("serve_on_demand_definitions", "definitions on demand that clients have lately asked for")
    ] = 0
    refused_definitions: Annotated[
        Natural, counter("serve_refused_definitions", "definitions on demand that were refused because there were many")
    ] = 0
    running_on_demand_reads: Annotated[
        Natural, gauge("serve_running_on_demand_reads", "reads for definitions on demand that run or wait")
    ] = 0
    on_demand_reads: Annotated[Natural, counter("serve_on_demand_reads", "reads for definitions on demand")] = 0
    running_subset_reads: Annotated[
        Natural, gauge("serve_running_subset_reads", "reads of subsets that run or wait")
    ] = 0
    subset_reads: Annotated[Natural, counter("serve_subset_reads", "reads of subsets that have ended")] = 0
    subset_read_ms: Annotated[
        Natural, counter("serve_subset_read_seconds", "how long those reads took together in their threads")
    ] = 0
    subset_rows: Annotated[Natural, counter("serve_subset_rows", "rows that were found by reads of subsets")] = 0
    tail: Annotated[TailStatus | None, about("the tail; `null` if none is configured")] = None
