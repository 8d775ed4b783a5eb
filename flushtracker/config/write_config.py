"""The writers' configuration: ``conf/write_shapes.yaml`` as frozen dataclasses.

Paths are kept as written. Relative ones start at the current directory; URIs such as ``s3://…`` are paths too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from flushtracker.config.file_kinds import WRITE, read_kind, read_one_file
from flushtracker.config.job_config import StateConfig, read_trigger_ms
from flushtracker.config.postgres_config import TablesConfig, read_tables
from flushtracker.config.program_forms import log_form
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig, read_spark
from flushtracker.config.status_config import StatusConfig, read_status
from flushtracker.config.storage_config import StorageConfig, deltalake_options, read_storage
from flushtracker.config.storage_path import require_distinct_paths
from flushtracker.config.streams import SHAPE_CHANGES, SHAPES
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.config.transport import FilesTransport, Transport, read_topic, read_transport

ROLES: Final = (SHAPE_CHANGES, SHAPES)

WriteUnit: TypeAlias = Literal["txn", "txn_fragment"]
FlushMode: TypeAlias = Literal["batch", "hold"]


@dataclass(frozen=True, slots=True)
class FlushesConfig:
    """The destination of flush notifications: a topic on the brokers of ``source``, or a directory. ``options`` are
    librdkafka's.
    """

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
    """The whole file. ``trigger_ms`` is ``None`` for a job that writes the available changes and stops.

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
    """Read a configuration file of ``flushtracker write``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    root = read_kind(path, WRITE)
    root.allow(
        "source",
        "flushes",
        "storage",
        "spark",
        "state",
        "sink",
        "write_unit",
        "flush",
        "snapshot",
        "postgres",
        "acks",
        "trigger",
        "status",
    )
    spark = read_spark(root)
    transport = read_transport(root.mapping("source"), ROLES)
    config = WriteConfig(
        transport=transport,
        flushes=_flushes(root.mapping("flushes"), transport),
        state=_state(root.mapping("state")),
        sink=_sink(root.mapping("sink"), spark.storage),
        write_unit="txn" if _is(root, "write_unit", "txn", default="txn_fragment") else "txn_fragment",
        flush="hold" if _is(root, "flush", "hold", default="batch") else "batch",
        trigger_ms=read_trigger_ms(root),
        tables=_tables(root),
        acks=_acks(root, transport),
        status=read_status(root),
        spark=spark,
    )
    keys = [("state", "checkpoint"), ("sink", "log"), ("sink", "shapes")]
    if isinstance(transport, FilesTransport):
        keys = [*(("source", role) for role in ROLES), ("flushes", "directory"), *keys]
    require_distinct_paths(root, keys)
    if config.flush == "hold" and config.trigger_ms is None:
        # After the last batch, nothing would flush the buffered rows.
        raise root.error(
            "flush",
            "is hold, which needs an interval as trigger; leave flush out, or set trigger to one such as 1 second",
        )
    if config.tables is not None and config.trigger_ms is None:
        raise root.error(
            "snapshot",
            "is auto, which needs an interval as trigger; leave snapshot and postgres out, and run flushtracker "
            "snapshot, or set trigger to one such as 1 second",
        )
    return config


def _tables(root: YamlMapping) -> TablesConfig | None:
    if _is(root, "snapshot", "auto", default="manual"):
        return read_tables(root.mapping("postgres"))
    if "postgres" in root:
        raise root.error("postgres", "is only used with snapshot: auto; leave it out, or set that")
    return None


def _acks(root: YamlMapping, transport: Transport) -> str | None:
    if "acks" not in root:
        return None
    if isinstance(transport, FilesTransport):
        raise root.error("acks", "is only used with source.format kafka; leave it out, or read from Kafka")
    if _is(root, "flush", "hold", default="batch"):
        raise root.error("acks", "is only used with flush: batch, because a batch must have appended what it read")
    return root.text("acks").value


def _flushes(section: YamlMapping, transport: Transport) -> FlushesConfig:
    if isinstance(transport, FilesTransport):
        section.allow("directory")
        return FlushesConfig(section.text("directory").value)
    section.allow("topic", "options")
    topic = read_topic(section, "topic")
    for role, other in transport.streams.items():
        if topic == other:
            raise section.error("topic", f"is the same as source.{role}; each needs its own")
    options = section.optional_mapping("options")
    return FlushesConfig(topic, SecretOptions(options.scalars() if options is not None else None))


def _state(state: YamlMapping) -> StateConfig:
    state.allow("checkpoint", "shape_groups", "shuffle_partitions")
    return StateConfig(
        checkpoint=state.text("checkpoint").value,
        shape_groups=state.integer("shape_groups", default=16, at_least=1),
        shuffle_partitions=state.integer("shuffle_partitions", default=4, at_least=1),
    )


def _sink(sink: YamlMapping, storage: StorageConfig) -> LogConfig:
    sink.allow("log", "shapes", "delete_after", "retain", "storage_options")
    history_ms, history_ms_of = _history(sink.optional_mapping("retain"))
    return LogConfig(
        log=sink.text("log").value,
        shapes=sink.text("shapes").value,
        delete_after_ms=sink.optional_duration_ms("delete_after"),
        history_ms=history_ms,
        history_ms_of=history_ms_of,
        storage_options=deltalake_options(storage, sink),
    )


def _history(retain: YamlMapping | None) -> tuple[int | None, dict[str, int]]:
    """The retention of all shapes' history, and exceptions by id."""
    if retain is None:
        return None, {}
    retain.allow("history", "shapes")
    shapes, found = retain.optional_mapping("shapes"), dict[str, int]()
    for shape_id in shapes or ():
        if shapes is not None and (history_ms := shapes.optional_duration_ms(shape_id)) is not None:
            found[shape_id] = history_ms
    return retain.optional_duration_ms("history"), found


def load_log_sink(path: Path) -> LogConfig:
    """Where the shape log is, by the configuration of all programs; raises ``ConfigError``."""
    file = read_one_file(path)
    root = file.mapping(log_form(file))
    return read_log_sink(root.mapping("sink"), read_storage(root))


def _is(root: YamlMapping, key: str, choice: str, *, default: str) -> bool:
    """Whether the key's value is ``choice``; the only other value is ``default``."""
    chosen = root.text(key).value if key in root else default
    if chosen not in {choice, default}:
        raise root.wrong(key, f"{choice} or {default}")
    return chosen == choice


def read_log_sink(sink: YamlMapping, storage: StorageConfig) -> LogConfig:
    """The location of a log, without settings only for the writers' job; raises ``ConfigError``."""
    sink.allow("log", "shapes", "storage_options")
    return LogConfig(
        sink.text("log").value,
        sink.text("shapes").value,
        storage_options=deltalake_options(storage, sink),
    )
