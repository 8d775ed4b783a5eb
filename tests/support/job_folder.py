"""A folder with everything that a tracking job reads and writes; one call runs the job on it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.config.job_config import (
    ROLES,
    JobConfig,
    SinkConfig,
    StallConfig,
    StateConfig,
)
from flushtracker.config.transport import FilesTransport, KafkaTransport, Transport
from flushtracker.delta.storage import table_rows
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.tracking.job.query import Recovery, track_flushes
from tests.support.config_file import write_config

# Files get fixed times, so that the job reads them in the order in which the test writes them.
_FIRST_FILE_S = 1_700_000_000


@dataclass(frozen=True)
class JobFolder:
    """``write`` the events of a micro-batch, ``run`` the job until it has read everything, and check ``acks``.

    With ``max_files_per_trigger`` 1 the n-th ``write`` is the n-th micro-batch.
    """

    root: Path

    def __post_init__(self) -> None:
        for stream in ("fragments", "flushes"):
            (self.root / stream).mkdir(parents=True, exist_ok=True)

    def write(self, events: Iterable[FragmentEvent | FlushNotification | str], flushes: Iterable[str] = ()) -> None:
        """Publish one file in each stream.

        Strings are written as they are: those in ``events`` to fragments, those in ``flushes`` to flushes.
        """
        lines: dict[str, list[str]] = {"fragments": [], "flushes": list(flushes)}
        for event in events:
            stream = "flushes" if isinstance(event, FlushNotification) else "fragments"
            lines[stream].append(event if isinstance(event, str) else event.to_json())
        number = len(list((self.root / "flushes").iterdir()))
        for stream, texts in lines.items():
            hidden = self.root / stream / f".{number:06}.jsonl"
            hidden.write_text("".join(text + "\n" for text in texts))
            os.utime(hidden, (_FIRST_FILE_S + number, _FIRST_FILE_S + number))
            hidden.rename(self.root / stream / f"{number:06}.jsonl")

    def transport(self, max_files_per_trigger: int) -> Transport:
        return FilesTransport({role: str(self.root / role) for role in ROLES}, max_files_per_trigger)

    def config(
        self, *, shape_groups: int = 4, max_files_per_trigger: int = 1, trigger_ms: int | None = None
    ) -> JobConfig:
        return JobConfig(
            self.transport(max_files_per_trigger),
            StateConfig(str(self.root / "checkpoint"), shape_groups, shuffle_partitions=2),
            SinkConfig(str(self.root / "acks"), str(self.root / "dead_letters")),
            StallConfig(),
            trigger_ms,
        )

    def run(
        self,
        spark: SparkSession,
        *,
        shape_groups: int = 4,
        max_files_per_trigger: int = 1,
        recovery: Recovery | None = None,
    ) -> None:
        """Run the job in this process until it has read everything."""
        config = self.config(shape_groups=shape_groups, max_files_per_trigger=max_files_per_trigger)
        track_flushes(spark, config, Event(), recovery)

    def twin(self, root: Path) -> "JobFolder":
        """A new job folder with the same streams and no output yet."""
        root.mkdir(parents=True, exist_ok=True)
        for stream in ("fragments", "flushes"):
            (root / stream).symlink_to(self.root / stream, target_is_directory=True)
        return replace(self, root=root)

    def config_file(self, **changes: Any) -> Path:
        """Write the configuration to a file, for a job in a separate process."""
        config = self.config(**changes)
        settings = {
            **self._streams(config.transport),
            "storage": str(self.root),
            "status": False,
            "track": {
                "trigger": "available_now" if config.trigger_ms is None else f"{config.trigger_ms} ms",
                "checkpoint": config.state.checkpoint,
                "shape_groups": config.state.shape_groups,
                "shuffle_partitions": 2,
                **({"options": dict(config.transport.options)} if isinstance(config.transport, KafkaTransport) else {}),
            },
        }
        return write_config(self.root / "config.yaml", settings)

    def _streams(self, transport: Transport) -> dict[str, Any]:
        if isinstance(transport, FilesTransport):
            files = {"path": str(self.root), "max_files_per_trigger": transport.max_files_per_trigger}
            return {"files": files}
        prefix = transport.streams["flushes"].removesuffix(".flushes")
        return {"kafka": {"bootstrap_servers": transport.bootstrap_servers, "topic_prefix": prefix}}

    def acks(self, source: str | None = None) -> list[tuple[str, int, int]]:
        """The ack table's rows as ``(source, batch_id, ack_lsn)``, in the order of their batches."""
        picked = [(row["source"], row["batch_id"], row["ack_lsn"]) for row in self.ack_rows()]
        return sorted(row for row in picked if source in {None, row[0]})

    def ack_rows(self) -> list[dict[str, Any]]:
        """The ack table's rows, in no order; none if there is no table."""
        if not DeltaTable.is_deltatable(str(self.root / "acks")):
            return []
        rows: list[dict[str, Any]] = table_rows(DeltaTable(str(self.root / "acks")), ["*"]).to_pylist()
        return rows

    def ack_lsns(self, source: str) -> dict[int, int]:
        """The acks of one source, by batch."""
        return {batch_id: ack_lsn for _, batch_id, ack_lsn in self.acks(source)}
