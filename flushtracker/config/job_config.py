"""The tracking job's configuration: ``conf/track_flushes.yaml`` as frozen dataclasses.

Paths are kept as written. Relative ones start at the current directory; URIs such as ``s3://…`` are paths too.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from flushtracker.config.file_kinds import TRACK, read_kind
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig, read_spark
from flushtracker.config.status_config import StatusConfig, read_status
from flushtracker.config.storage_config import StorageConfig, deltalake_options
from flushtracker.config.storage_path import require_distinct_paths
from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.config.transport import FilesTransport, Transport, read_transport
from flushtracker.config.units import DURATION_FORM, parse_duration_ms

AVAILABLE_NOW: Final = "available_now"
_DEFAULT_GRACE_MS: Final = 60_000
ROLES: Final = (FRAGMENTS, FLUSHES)


@dataclass(frozen=True, slots=True)
class StateConfig:
    """Spark's state. A checkpoint fixes ``shape_groups`` (0: one per shape) and ``shuffle_partitions``."""

    checkpoint: str
    shape_groups: int = 16
    max_pending_transactions: int = 4096
    shuffle_partitions: int = 4


class QueryConfig(Protocol):
    """What all jobs' configurations share. ``trigger_ms`` is ``None`` for a job that reads what is available
    and stops.
    """

    @property
    def transport(self) -> Transport: ...

    @property
    def state(self) -> StateConfig: ...

    @property
    def trigger_ms(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class SinkConfig:
    acks: str
    dead_letters: str
    storage_options: SecretOptions = field(default_factory=SecretOptions)


@dataclass(frozen=True, slots=True)
class StallConfig:
    """A pending shape without progress for this long is stalled."""

    grace_ms: int = _DEFAULT_GRACE_MS


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The whole file. ``trigger_ms`` is ``None`` for a job that processes the available events and stops."""

    transport: Transport
    state: StateConfig
    sink: SinkConfig
    stall: StallConfig
    trigger_ms: int | None
    status: StatusConfig | None = None
    spark: SparkConfig = field(default_factory=SparkConfig)


def load_config(path: Path) -> JobConfig:
    """Read a configuration file of ``flushtracker track``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    root = read_kind(path, TRACK)
    root.allow("source", "storage", "spark", "state", "sink", "stall", "trigger", "status")
    spark = read_spark(root)
    config = JobConfig(
        transport=read_transport(root.mapping("source"), ROLES),
        state=_state(root.mapping("state")),
        sink=_sink(root.mapping("sink"), spark.storage),
        stall=_stall(root.optional_mapping("stall")),
        trigger_ms=read_trigger_ms(root),
        status=read_status(root),
        spark=spark,
    )
    keys = [("state", "checkpoint"), ("sink", "acks"), ("sink", "dead_letters")]
    if isinstance(config.transport, FilesTransport):
        keys = [*(("source", role) for role in ROLES), *keys]
    require_distinct_paths(root, keys)
    return config


def _state(state: YamlMapping) -> StateConfig:
    state.allow("checkpoint", "shape_groups", "max_pending_transactions", "shuffle_partitions")
    return StateConfig(
        checkpoint=state.text("checkpoint").value,
        shape_groups=state.integer("shape_groups", default=16, at_least=0),
        max_pending_transactions=state.integer("max_pending_transactions", default=4096, at_least=1),
        shuffle_partitions=state.integer("shuffle_partitions", default=4, at_least=1),
    )


def _sink(sink: YamlMapping, storage: StorageConfig) -> SinkConfig:
    sink.allow("acks", "dead_letters", "storage_options")
    return SinkConfig(
        acks=sink.text("acks").value,
        dead_letters=sink.text("dead_letters").value,
        storage_options=deltalake_options(storage, sink),
    )


def _stall(stall: YamlMapping | None) -> StallConfig:
    if stall is None:
        return StallConfig()
    stall.allow("grace")
    grace_ms = stall.optional_duration_ms("grace")
    return StallConfig() if grace_ms is None else StallConfig(grace_ms)


def read_trigger_ms(root: YamlMapping) -> int | None:
    """The interval of ``trigger``; ``None`` for :data:`AVAILABLE_NOW`."""
    trigger = root.text("trigger").value
    if trigger == AVAILABLE_NOW:
        return None
    try:
        return parse_duration_ms(trigger)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise root.wrong("trigger", f"{AVAILABLE_NOW}, or an interval: {DURATION_FORM}") from None
