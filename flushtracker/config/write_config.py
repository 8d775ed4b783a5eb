"""The writers' configuration as frozen dataclasses.

Paths are kept as written. Relative ones start at the current directory; URIs such as ``s3://…`` are paths too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from flushtracker.config.job_config import StateConfig, read_trigger_ms
from flushtracker.config.one_file import OneFile, read_config, read_program
from flushtracker.config.postgres_config import TablesConfig, read_tables
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig, read_spark
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.storage_config import deltalake_options
from flushtracker.config.streams import FLUSHES, SHAPE_CHANGES, SHAPES
from flushtracker.config.transport import Transport, read_transport

ROLES: Final = (SHAPE_CHANGES, SHAPES)

WriteUnit: TypeAlias = Literal["txn", "txn_fragment"]
FlushMode: TypeAlias = Literal["batch", "hold"]


@dataclass(frozen=True, slots=True)
class FlushesConfig:
    """The destination of flush notifications: a topic, or a directory. ``options`` are librdkafka's."""

    name: str
    options: SecretOptions = field(default_factory=SecretOptions)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The Delta tables that the job writes.

    An ended shape keeps its log for ``delete_after_ms``. A shape keeps its history for ``history_ms``, unless
    ``history_ms_of`` has its id. ``None``: forever.
    """

    log: str
    shapes: str
    delete_after_ms: int | None = None
    history_ms: int | None = None
    history_ms_of: Mapping[str, int] = field(default_factory=dict)
    storage_options: SecretOptions = field(default_factory=SecretOptions)


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """All of it. ``trigger_ms`` is ``None`` for a job that writes the available changes and stops.

    ``tables`` is the server from which the job itself takes snapshots, ``None`` if it takes none. ``acks`` is the ack
    table from which it records cuts, ``None`` for no cuts.
    """

    transport: Transport
    flushes: FlushesConfig
    state: StateConfig
    sink: LogConfig
    write_unit: WriteUnit
    flush: FlushMode
    trigger_ms: int | None
    tables: TablesConfig | None = None
    acks: str | None = None
    status: StatusConfig | None = None
    spark: SparkConfig = field(default_factory=SparkConfig)


def load_write_config(path: Path) -> WriteConfig:
    """Read the configuration for ``flushtracker write``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    file = read_program(path, "write")
    write = file.section("write")
    flush: FlushMode = "hold" if write.choice("flush", "batch", "hold") == "hold" else "batch"
    unit: WriteUnit = "txn" if write.choice("write_unit", "txn_fragment", "txn") == "txn" else "txn_fragment"
    config = WriteConfig(
        transport=read_transport(file, "write", ROLES),
        flushes=_flushes(file),
        state=StateConfig(
            file.checkpoint("write"),
            write.integer("shape_groups", at_least=1),
            shuffle_partitions=write.integer("shuffle_partitions", at_least=1),
        ),
        sink=_log_with_retention(file),
        write_unit=unit,
        flush=flush,
        trigger_ms=read_trigger_ms(write),
        tables=read_tables(file, connections=1) if file.takes_snapshots else None,
        # A cut needs that a batch has appended what it read.
        acks=file.place("acks") if flush == "batch" and not file.has_files else None,
        status=file.status("write"),
        spark=read_spark(file, "write"),
    )
    if config.trigger_ms is None and flush == "hold":
        # After the last batch, nothing would flush the buffered rows.
        raise write.error("flush", "is hold, which needs an interval as write.trigger, such as 1 second")
    if config.trigger_ms is None and config.tables is not None:
        raise write.error(
            "trigger",
            "is available_now, but this job takes the snapshots, which needs an interval; set one, or write.snapshot "
            "to manual, and run flushtracker snapshot",
        )
    return config


def read_log(file: OneFile) -> LogConfig:
    """The location of the log, without settings only for the writers' job; raises ``ConfigError``."""
    options = deltalake_options(file.section("storage"))
    return LogConfig(file.place("log"), file.place("log_shapes"), storage_options=options)


def load_log(path: Path) -> LogConfig:
    """Where the shape log is; raises ``ConfigError``."""
    return read_log(read_config(path))


def _log_with_retention(file: OneFile) -> LogConfig:
    retain = file.section("write.retain")
    shapes = retain.optional_mapping("shapes")
    return replace(
        read_log(file),
        delete_after_ms=file.section("write").optional_duration_ms("delete_after"),
        history_ms=retain.optional_duration_ms("history"),
        history_ms_of={} if shapes is None else {shape_id: shapes.duration_ms(shape_id) for shape_id in shapes},
    )


def _flushes(file: OneFile) -> FlushesConfig:
    if file.has_files:
        return FlushesConfig(file.stream_folder(FLUSHES))
    return FlushesConfig(file.topic(FLUSHES), SecretOptions(file.options("kafka.options")))
