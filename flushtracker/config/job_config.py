"""The tracking job's configuration as frozen dataclasses.

Paths are kept as written. Relative ones start at the current directory; URIs such as ``s3://…`` are paths too.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from flushtracker.config.one_file import AVAILABLE_NOW, read_program
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig, read_spark
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.storage_config import deltalake_options
from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.config.transport import Transport, read_transport
from flushtracker.config.units import DURATION_FORM, parse_duration_ms

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
    """All of it. ``trigger_ms`` is ``None`` for a job that processes the available events and stops."""

    transport: Transport
    state: StateConfig
    sink: SinkConfig
    stall: StallConfig
    trigger_ms: int | None
    status: StatusConfig | None = None
    spark: SparkConfig = field(default_factory=SparkConfig)


def load_config(path: Path) -> JobConfig:
    """Read the configuration for ``flushtracker track``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    file = read_program(path, "track")
    track = file.section("track")
    return JobConfig(
        transport=read_transport(file, "track", ROLES),
        state=StateConfig(
            file.checkpoint("track"),
            track.integer("shape_groups", at_least=0),
            track.integer("max_pending_transactions", at_least=1),
            track.integer("shuffle_partitions", at_least=1),
        ),
        sink=SinkConfig(file.place("acks"), file.place("dead_letters"), deltalake_options(file.section("storage"))),
        stall=StallConfig(track.duration_ms("stall_grace")),
        trigger_ms=read_trigger_ms(track),
        status=file.status("track"),
        spark=read_spark(file, "track"),
    )


def read_trigger_ms(section: YamlMapping) -> int | None:
    """The interval of ``trigger``; ``None`` for :data:`AVAILABLE_NOW`."""
    trigger = section.text("trigger").value
    if trigger == AVAILABLE_NOW:
        return None
    try:
        return parse_duration_ms(trigger)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise section.wrong("trigger", f"{AVAILABLE_NOW}, or an interval: {DURATION_FORM}") from None
