"""Reads what a starting driver needs of the last committed batch: each group's newest report."""

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.spark.committed_state import Remedies, read_state_rows
from flushtracker.tracking.packed_state import START_OVER
from flushtracker.tracking.shape_group import check_group_version
from flushtracker.tracking.source_tracker import CHAIN, ReportRow

REMEDIES: Final = Remedies(
    "change it back, set state.checkpoint to a new path, or start once with --recover",
    START_OVER,
)


@dataclass(frozen=True, slots=True)
class CommittedReports:
    """The last report of every group when ``batch_id`` was committed; -1 if no batch was."""

    batch_id: int = -1
    reports: list[ReportRow] = field(default_factory=list)


def read_committed_reports(spark: SparkSession, checkpoint: str, shape_groups: int) -> CommittedReports:
    """Read the last committed batch's state.

    Raises:
        StateError: the state cannot be read, or was written with another number of shape groups, or by a release with
            another format.
    """
    fields = ("report", "substring(packed, 1, 1) AS version")
    batch_id, rows = read_state_rows(spark, checkpoint, shape_groups, fields, REMEDIES)
    for row in rows:
        if row["shape_group"] != CHAIN:
            check_group_version(bytes(row["version"]))
    return CommittedReports(batch_id, [ReportRow(row["source"], row["shape_group"], row["report"]) for row in rows])
