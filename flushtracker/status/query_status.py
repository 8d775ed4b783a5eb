"""``QueryStatus``: what the documents of the jobs with a streaming query have in common."""

from typing import Annotated

from flushtracker.status.document import Document, Natural, about, age, gauge


class QueryStatus(Document, frozen=True):
    """All but ``is_ready`` and ``batch_running_since_ms`` is as of the last batch that has ended."""

    is_ready: Annotated[
        bool,
        about("whether the query runs: its state is read, and a batch has ended or there was nothing to read"),
    ]
    batch_id: Annotated[int | None, about("the last micro-batch that has ended")] = None
    batch_at_ms: Annotated[
        Natural | None,
        gauge(
            "batch_timestamp_seconds",
            "when it ended; without input there may be none for a long time",
            "when the last micro-batch ended; without input there may be none for a long time",
        ),
    ] = None
    batch_running_since_ms: Annotated[
        Natural | None,
        age(
            "batch_running_seconds",
            "since when the current micro-batch runs; `null` between two. The other figures are as of the last "
            "finished batch, so they are stale if this is long ago",
            "for how long the current micro-batch has run; 0 between two",
        ),
    ] = None
    batches: Annotated[Natural, about("how many have ended")] = 0
    batch_ms: Annotated[Natural, about("how long they took together on the driver")] = 0
    records_behind: Annotated[
        Natural | None,
        gauge(
            "kafka_records_behind",
            "records of the topics that were not read yet, as of the last finished batch: while one hangs it does not "
            "grow",
        ),
    ] = None
    state_bytes: Annotated[
        Natural | None, gauge("state_bytes", "memory that Spark's state takes, as its state store estimates it")
    ] = None

    @property
    def not_ready_because(self) -> str | None:
        """Why the program does not do its work yet; ``None`` if it is ready.

        A job stays ready during a long batch: a restart would only make it longer. There is an alert for it.
        """
        return None if self.is_ready else "the query is starting: it reads its state or runs its first batch"
