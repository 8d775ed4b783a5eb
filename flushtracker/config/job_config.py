"""The job's configuration: ``conf/*.yaml`` → frozen dataclasses.

Paths are kept as written: relative ones start at the current directory, and URIs such as ``s3://…`` are paths too.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

from flushtracker.config.duration import DURATION_FORM, parse_duration_ms
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.storage_path import Place, is_inside, place_of
from flushtracker.config.strict_yaml import YamlMapping, read_yaml

AVAILABLE_NOW: Final = "available_now"
_DEFAULT_GRACE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_OWN_KAFKA_OPTIONS: Final = {
    "subscribe": "source.fragments and source.flushes name the topics",
    "subscribepattern": "source.fragments and source.flushes name the topics",
    "assign": "source.fragments and source.flushes name the topics",
    "kafka.bootstrap.servers": "use source.bootstrap_servers",
    "failondataloss": "a lost record must stop the job",
    "startingoffsets": "the checkpoint determines where the job resumes, and --recover where it starts over",
    "startingoffsetsbytimestamp": "the checkpoint determines where the job resumes, and --recover where it starts over",
    "startingtimestamp": "the checkpoint determines where the job resumes, and --recover where it starts over",
    "endingoffsets": "a stream has no end",
    "endingoffsetsbytimestamp": "a stream has no end",
    "endingtimestamp": "a stream has no end",
    "includeheaders": "headers are not used",
}
"""Options of Spark's Kafka source that this job sets itself or does not allow, in lower case, each with the reason."""


@dataclass(frozen=True, slots=True)
class FilesTransport:
    """Events as files of JSON lines, one directory for each stream."""

    format: ClassVar[Literal["files"]] = "files"
    retry_timeout_ms: ClassVar[int] = 0
    fragments: str
    flushes: str
    max_files_per_trigger: int = 100


@dataclass(frozen=True, slots=True)
class KafkaTransport:
    """Events as records of two topics.

    ``options`` are those of Spark's Kafka source, ``kafka.*`` those of its client. ``retention_ms`` is the minimum
    retention of the topic of fragments, ``retry_timeout_ms`` how long an unavailable broker is retried.
    """

    format: ClassVar[Literal["kafka"]] = "kafka"
    bootstrap_servers: str
    fragments: str
    flushes: str
    options: SecretOptions = field(default_factory=SecretOptions)
    retention_ms: int = 7 * _DAY_MS
    retry_timeout_ms: int = 600_000


Transport: TypeAlias = FilesTransport | KafkaTransport
"""How the events arrive; one type for each ``source.format``."""


@dataclass(frozen=True, slots=True)
class StateConfig:
    """Spark's state. A checkpoint fixes ``shape_groups`` (0: one for each shape) and ``shuffle_partitions``."""

    checkpoint: str
    shape_groups: int = 16
    max_pending_transactions: int = 4096
    shuffle_partitions: int = 4


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """The Delta tables that the job writes."""

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


def load_config(path: Path) -> JobConfig:
    """Read a configuration file of ``flushtracker track``.

    Raises:
        ConfigError: naming the file, the line and the key.
    """
    root = read_yaml(path)
    root.allow("source", "state", "sink", "stall", "trigger")
    config = JobConfig(
        transport=_transport(root.mapping("source")),
        state=_state(root.mapping("state")),
        sink=_sink(root.mapping("sink")),
        stall=_stall(root.optional_mapping("stall")),
        trigger_ms=_trigger_ms(root),
    )
    _check_distinct_paths(root)
    return config


def _transport(source: YamlMapping) -> Transport:
    kind = source.text("format").value
    if kind == FilesTransport.format:
        return _files_transport(source)
    if kind == KafkaTransport.format:
        return _kafka_transport(source)
    raise source.wrong("format", "files or kafka")


def _files_transport(source: YamlMapping) -> FilesTransport:
    source.allow("format", "fragments", "flushes", "max_files_per_trigger")
    return FilesTransport(
        fragments=source.text("fragments").value,
        flushes=source.text("flushes").value,
        max_files_per_trigger=source.integer("max_files_per_trigger", default=100, at_least=1),
    )


def _kafka_transport(source: YamlMapping) -> KafkaTransport:
    source.allow("format", "bootstrap_servers", "fragments", "flushes", "options", "retention", "retry_timeout")
    options = source.optional_mapping("options")
    for name in options or ():
        if reason := _OWN_KAFKA_OPTIONS.get(name.lower()):
            raise source.mapping("options").error(name, f"cannot be set: {reason}")
    defaults = KafkaTransport("", "", "")
    return KafkaTransport(
        bootstrap_servers=source.text("bootstrap_servers").value,
        fragments=_topic(source, "fragments"),
        flushes=_topic(source, "flushes"),
        options=SecretOptions(options.scalars() if options is not None else None),
        retention_ms=source.optional_duration_ms("retention") or defaults.retention_ms,
        retry_timeout_ms=source.optional_duration_ms("retry_timeout") or defaults.retry_timeout_ms,
    )


def _topic(source: YamlMapping, key: str) -> str:
    """The name of one topic; Spark would read a name with a comma as several."""
    name = source.text(key).value
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        raise source.wrong(key, "a topic name: letters, digits, '.', '_' and '-'")
    return name


def _state(state: YamlMapping) -> StateConfig:
    state.allow("checkpoint", "shape_groups", "max_pending_transactions", "shuffle_partitions")
    return StateConfig(
        checkpoint=state.text("checkpoint").value,
        shape_groups=state.integer("shape_groups", default=16, at_least=0),
        max_pending_transactions=state.integer("max_pending_transactions", default=4096, at_least=1),
        shuffle_partitions=state.integer("shuffle_partitions", default=4, at_least=1),
    )


def _sink(sink: YamlMapping) -> SinkConfig:
    sink.allow("acks", "dead_letters", "storage_options")
    options = sink.optional_mapping("storage_options")
    return SinkConfig(
        acks=sink.text("acks").value,
        dead_letters=sink.text("dead_letters").value,
        storage_options=SecretOptions(options.scalars() if options is not None else None),
    )


def _stall(stall: YamlMapping | None) -> StallConfig:
    if stall is None:
        return StallConfig()
    stall.allow("grace")
    grace_ms = stall.optional_duration_ms("grace")
    return StallConfig() if grace_ms is None else StallConfig(grace_ms)


def _trigger_ms(root: YamlMapping) -> int | None:
    trigger = root.text("trigger").value
    if trigger == AVAILABLE_NOW:
        return None
    try:
        return parse_duration_ms(trigger)
    except ValueError:
        # The cause is dropped because it could show a variable's value.
        raise root.wrong("trigger", f"{AVAILABLE_NOW}, or an interval: {DURATION_FORM}") from None


def _check_distinct_paths(root: YamlMapping) -> None:
    """Check that no stream, table or checkpoint is another one, or inside it.

    They would read each other's events, compaction deletes what is in the folder of the acks and not part of the table,
    and ``--recover`` moves the checkpoint's folder with everything in it.
    """
    keys = [("state", "checkpoint"), ("sink", "acks"), ("sink", "dead_letters")]
    source = root.mapping("source")
    if source.text("format").value == FilesTransport.format:
        keys = [("source", "fragments"), ("source", "flushes"), *keys]
    elif source.text("fragments").value == source.text("flushes").value:
        raise source.error("flushes", "is the same as source.fragments; each needs its own")
    taken: dict[str, Place] = {}
    for section, key in keys:
        mapping = root.mapping(section)
        place = _place(mapping, key)
        for other, other_place in taken.items():
            if place == other_place:
                raise mapping.error(key, f"is the same as {other}; each needs its own")
            if is_inside(place, other_place):
                raise mapping.error(key, f"is inside {other}; each needs a folder of its own")
            if is_inside(other_place, place):
                raise mapping.error(key, f"contains {other}; each needs a folder of its own")
        taken[f"{section}.{key}"] = place


def _place(mapping: YamlMapping, key: str) -> Place:
    try:
        return place_of(mapping.text(key).value)
    except ValueError:  # no path has a NUL, which a file: URI can spell
        raise mapping.wrong(key, "a path or a URI that leads to a folder") from None
