"""The ends of shapes' logs that are past the checkpoint's state: read from the log, and kept in the checkpoint.

The state of a batch is committed after its rows are appended, so after a crash the log may be one batch ahead. A new
checkpoint's state knows no rows at all.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.errors import SinkError, StateError
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_writer import LogEnd
from flushtracker.shape_log.table.claim import LogRows
from flushtracker.shape_log.writer_group import Durable, WriterGroup
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.wal.log_offset import LogOffset

_FILE: Final = "log_ends.json"

LogEnds: TypeAlias = dict[tuple[str, str], LogEnd]
"""By source and shape."""


@dataclass(slots=True)
class CommittedWriters:
    """The state of all shapes after batch ``batch_id``: how far each is durable, and which were forgotten.

    ``group_of`` returns the name of a shape's group.
    """

    batch_id: int
    group_of: Callable[[str], str]
    durable: dict[tuple[str, str], Durable] = field(default_factory=dict)
    _forgotten: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, shape_group: str, group: WriterGroup) -> None:
        self.durable |= {(group.source, shape_id): each for shape_id, each in group.durable().items()}
        self._forgotten[group.source, shape_group] = group.forgotten_lsn

    def has(self, key: tuple[str, str], end: LogOffset) -> bool:
        """Whether a shape is durable up to ``end``, or was removed there and forgotten."""
        if key in self.durable:
            return end <= self.durable[key].offset
        return end.tx_offset <= self._forgotten.get((key[0], self.group_of(key[1])), -1)


def read_log_ends(spark: SparkSession, log: str) -> LogEnds:
    """The end of each shape's log; reads three columns of the whole log. Raises ``SinkError``."""
    offset = F.struct("tx_offset", "op_offset")
    try:
        rows = (
            spark.read.format("delta")
            .load(log)
            # Rows at 0 are those of snapshots, which no writer appends.
            .where(F.col("tx_offset") > 0)
            .groupBy("source", "shape_id")
            .agg(
                F.max(offset).alias("last"),
                F.max(F.when(F.col("operation") == COMMIT, offset)).alias("last_txn"),
                F.max("chunk").alias("chunk"),
            )
            .collect()
        )
    except JAVA_ERRORS as error:
        raise SinkError(f"shape log {log} cannot be read: {java_reason(error)}") from error
    return {
        (row["source"], row["shape_id"]): LogEnd(
            LogOffset(*row["last"]),
            LogOffset.before_all() if row["last_txn"] is None else LogOffset(*row["last_txn"]),
            row["chunk"],
        )
        for row in rows
    }


def unknown_ends(ends: LogEnds, committed: CommittedWriters) -> LogEnds:
    """The ends past the durable offsets in the state, including removed shapes, which may have been resynced."""
    return {key: end for key, end in ends.items() if not committed.has(key, end.last_offset)}


def last_rows(durable: Mapping[tuple[str, str], Durable]) -> LogRows:
    """For each source the last durable row in the state; an older copy of the log lacks it.

    Rows of removed shapes do not count, because they may have been deleted.
    """
    last: dict[str, tuple[LogOffset, str]] = {}
    for (source, shape_id), (offset, is_removed) in durable.items():
        if not is_removed and offset > LogOffset.before_all():
            last[source] = max(last.get(source, (offset, shape_id)), (offset, shape_id))
    return [(source, shape_id, offset) for source, (offset, shape_id) in sorted(last.items())]


def known_ends(ends: LogEnds, durable: Mapping[tuple[str, str], Durable]) -> dict[tuple[str, str], LogOffset]:
    """How far each shape is durable, if it is not removed or its log is ahead of the state."""
    known = {key: each.offset for key, each in durable.items() if not each.is_removed}
    known |= {key: end.last_offset for key, end in ends.items()}
    return {key: offset for key, offset in known.items() if offset.tx_offset >= 0}


class StoredEnds:
    """A file in ``checkpoint`` with the checkpoint's claim and the ends found after it; raises ``StateError``."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        try:
            self._files = HadoopFiles(spark, checkpoint)
        except JAVA_ERRORS as error:
            raise self._error(java_reason(error)) from error

    def read(self) -> tuple[int | None, LogEnds]:
        """The claim and the ends; ``None`` and no ends if the checkpoint has made no claim."""
        try:
            content = self._files.read(_FILE)
        except JAVA_ERRORS as error:
            raise self._error(java_reason(error)) from error
        if content is None:
            return None, {}
        try:
            fields = json.loads(content)
            ends = {
                (source, shape_id): LogEnd(LogOffset(*last), LogOffset(*last_txn), chunk)
                for source, shape_id, last, last_txn, chunk in fields["ends"]
            }
            return int(fields["claim"]), ends
        except (ValueError, KeyError, TypeError) as error:
            raise self._error("it is malformed; remove it, and the log is read instead") from error

    def write(self, claim: int, ends: LogEnds) -> None:
        fields = {"claim": claim, "ends": [[*key, *end] for key, end in sorted(ends.items())]}
        try:
            is_written = self._files.write(_FILE, json.dumps(fields).encode())
        except JAVA_ERRORS as error:
            raise self._error(java_reason(error)) from error
        if not is_written:
            raise self._error("the storage refuses to rename a file to it")

    def _error(self, reason: str) -> StateError:
        return StateError(f"{self._checkpoint}/{_FILE} cannot be read or written: {reason}")
