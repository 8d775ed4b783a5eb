"""How a job receives its streams. Each job reads some of them (``roles``), each from a topic or a directory."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, TypeAlias

from flushtracker.config.one_file import OneFile
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.strict_yaml import YamlMapping

_DAY_MS: Final = 86_400_000
_OWN_KAFKA_OPTIONS: Final = {
    "subscribe": "kafka.topic_prefix names the topics",
    "subscribepattern": "kafka.topic_prefix names the topics",
    "assign": "kafka.topic_prefix names the topics",
    "kafka.bootstrap.servers": "use kafka.bootstrap_servers",
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
_SAME: Final = {
    "security.protocol": "kafka.security.protocol",
    "sasl.mechanism": "kafka.sasl.mechanism",
    "sasl.mechanisms": "kafka.sasl.mechanism",
    "ssl.ca.location": "kafka.ssl.truststore.location",
}
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LOGIN: Final = ("sasl.username", "sasl.password")
_REMEDY: Final = "say what the jobs need in kafka.spark_options (docs/security.md)"


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
"""The transport: of ``files``, or of ``kafka``."""


def read_transport(file: OneFile, job: str, roles: Sequence[str]) -> Transport:
    """The transport of a job that reads the streams ``roles``; raises ``ConfigError``."""
    if file.has_files:
        streams = {role: file.stream_folder(role) for role in roles}
        return FilesTransport(streams, file.section("files").integer("max_files_per_trigger", at_least=1))
    kafka, default = file.section("kafka"), KafkaTransport("", {})
    return KafkaTransport(
        file.brokers,
        {role: file.topic(role) for role in roles},
        SecretOptions(_options(file, job)),
        kafka.duration_ms("retention"),
        kafka.optional_duration_ms("retry_timeout") or default.retry_timeout_ms,
    )


def derived_options(file: OneFile) -> dict[str, str]:
    """Options of Spark's Kafka source from librdkafka's; none if the file has its own."""
    kafka = file.section("kafka")
    own, clients = file.options("kafka.spark_options"), kafka.optional_mapping("options")
    if clients is None or any(name.startswith(("kafka.sasl.", "kafka.ssl.", "kafka.security.")) for name in own):
        return {}
    return _spark_kafka_options(clients)


def _options(file: OneFile, job: str) -> dict[str, str]:
    kafka = file.section("kafka")
    for options in (kafka.optional_mapping("spark_options"), file.section(job).optional_mapping("options")):
        for name in options or ():
            if options is not None and (reason := _OWN_KAFKA_OPTIONS.get(name.lower())):
                raise options.error(name, f"cannot be set: {reason}")
    return {**derived_options(file), **file.options("kafka.spark_options", f"{job}.options")}


def _spark_kafka_options(options: YamlMapping) -> dict[str, str]:
    """How Spark's client, which is Java's, logs in as these options of librdkafka do.

    Raises:
        ConfigError: one of them concerns security, and has no counterpart that is known here.
    """
    values, found = options.scalars(), dict[str, str]()
    for name in options:
        if name in _SAME:
            found[_SAME[name]] = values[name]
        elif name not in _LOGIN and re.match(r"(?:sasl|ssl|enable\.ssl|https)\.", name):
            raise options.error(name, f"is not known for Spark's client: {_REMEDY}")
    if "ssl.ca.location" in options:
        found["kafka.ssl.truststore.type"] = "PEM"
    if "sasl.username" in options or "sasl.password" in options:
        mechanism = values.get("sasl.mechanism", values.get("sasl.mechanisms", ""))
        if mechanism not in _MODULES:
            raise options.error("sasl.mechanism", f"is none of {', '.join(_MODULES)}: {_REMEDY}")
        login = " ".join(f'{name[5:]}="{_escaped(values.get(name, ""))}"' for name in _LOGIN)
        found["kafka.sasl.jaas.config"] = f"{_MODULES[mechanism]} required {login};"
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
