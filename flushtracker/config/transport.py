"""How a job receives its streams: the transport, from the ``source`` section of a job's configuration.

Each job reads some of the streams (``roles``). The section has a key for each: a topic or a directory.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, TypeAlias

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping

_DAY_MS: Final = 86_400_000
_OWN_KAFKA_OPTIONS: Final = {
    "subscribe": "the keys of source name the topics",
    "subscribepattern": "the keys of source name the topics",
    "assign": "the keys of source name the topics",
    "kafka.bootstrap.servers": "use source.bootstrap_servers",
    "failondataloss": "a lost record must stop the job",
    "startingoffsets": "the checkpoint determines where the job resumes, and --recover where it starts over",
    "startingoffsetsbytimestamp": "the checkpoint determines where the job resumes, and --recover where it starts over",
    "startingtimestamp": "the checkpoint determines where the job resumes, and --recover where it starts over",
    "endingoffsets": "a stream has no end",
    "endingoffsetsbytimestamp": "a stream has no end",
    "endingtimestamp": "a stream has no end",
    "includeheaders": "headers are not used",
    "kafka.isolation.level": "the job sets read_committed, because a flush in an aborted transaction confirms nothing",
}
"""Options of Spark's Kafka source that this job sets itself or does not allow, in lower case, each with the reason."""


@dataclass(frozen=True, slots=True)
class FilesTransport:
    """Events as files of JSON lines; ``streams`` has the directory of each role."""

    format: ClassVar[Literal["files"]] = "files"
    retry_timeout_ms: ClassVar[int] = 0
    streams: Mapping[str, str]
    max_files_per_trigger: int = 100


@dataclass(frozen=True, slots=True)
class KafkaTransport:
    """Events as records; ``streams`` has the topic of each role.

    ``options`` are for Spark's Kafka source, ``kafka.*`` for its client. ``retention_ms`` is the minimum retention of a
    topic that is not compacted, ``retry_timeout_ms`` how long an unavailable broker is retried.
    """

    format: ClassVar[Literal["kafka"]] = "kafka"
    bootstrap_servers: str
    streams: Mapping[str, str]
    options: SecretOptions = field(default_factory=SecretOptions)
    retention_ms: int = 7 * _DAY_MS
    retry_timeout_ms: int = 600_000


Transport: TypeAlias = FilesTransport | KafkaTransport
"""The transport, one type for each ``source.format``."""


def read_transport(source: YamlMapping, roles: Sequence[str]) -> Transport:
    """Read a ``source`` section for a job that reads the streams ``roles``; raises ``ConfigError``."""
    kind = source.text("format").value
    if kind == FilesTransport.format:
        return _files_transport(source, roles)
    if kind == KafkaTransport.format:
        return _kafka_transport(source, roles)
    raise source.wrong("format", "files or kafka")


def _files_transport(source: YamlMapping, roles: Sequence[str]) -> FilesTransport:
    source.allow("format", *roles, "max_files_per_trigger")
    return FilesTransport(
        {role: source.text(role).value for role in roles},
        max_files_per_trigger=source.integer("max_files_per_trigger", default=100, at_least=1),
    )


def _kafka_transport(source: YamlMapping, roles: Sequence[str]) -> KafkaTransport:
    source.allow("format", "bootstrap_servers", *roles, "options", "retention", "retry_timeout")
    options = source.optional_mapping("options")
    for name in options or ():
        if reason := _OWN_KAFKA_OPTIONS.get(name.lower()):
            raise source.mapping("options").error(name, f"cannot be set: {reason}")
    defaults = KafkaTransport("", {})
    transport = KafkaTransport(
        bootstrap_servers=source.text("bootstrap_servers").value,
        streams={role: read_topic(source, role) for role in roles},
        options=SecretOptions(options.scalars() if options is not None else None),
        retention_ms=source.optional_duration_ms("retention") or defaults.retention_ms,
        retry_timeout_ms=source.optional_duration_ms("retry_timeout") or defaults.retry_timeout_ms,
    )
    for number, role in enumerate(roles):
        for other in roles[:number]:
            if transport.streams[role] == transport.streams[other]:
                raise source.error(role, f"is the same as source.{other}; each needs its own")
    return transport


def read_topic(section: YamlMapping, key: str) -> str:
    """The name of one topic; Spark would read a name with a comma as several."""
    name = section.text(key).value
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        raise section.wrong(key, "a topic name: letters, digits, '.', '_' and '-'")
    return name
