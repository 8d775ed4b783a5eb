"""Every key of ``flushtracker.yaml``: its kind, its default, and what it is. All programs share this one file.

The table is the only place that lists them: unknown keys are refused by it, defaults come from it, and so do the table
in ``docs/configuration.md`` and the JSON Schema.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from flushtracker.config.units import BYTES_FORM, DURATION_FORM

Kind: TypeAlias = Literal["text", "duration", "size", "integer", "boolean", "texts", "options", "durations"]
PROGRAMS: Final = ("track", "capture", "write", "snapshot", "serve", "sink")
"""Each has a section of its name, in the order of their ports."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """``default`` is as written in a file; ``None`` if there is none, and ``absent`` then says what that means."""

    path: str
    kind: Kind
    default: str | None
    absent: str
    about: str
    is_required: bool = False

    @property
    def section(self) -> str:
        """The path of the mapping that has the key; empty for the file itself."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def default_text(self) -> str:
        """The default for people.

        >>> KEYS["capture.slot"].default_text, KEYS["capture.max_tx_size"].default_text
        ('flushtracker', 'no limit')
        """
        return self.absent if self.default is None else self.default.strip('"')


def _key(path: str, kind: Kind, default: str | None, about: str) -> ConfigKey:
    """A default that begins with ``-`` is what its absence means."""
    if default is None or default.startswith("-"):
        return ConfigKey(path, kind, None, (default or "-required")[1:], about, default is None)
    return ConfigKey(path, kind, default, "", about)


_SPARK_OPTIONS: Final = "more options of Spark's Kafka source for this job alone, such as `maxOffsetsPerTrigger`"
_SPARK: Final = "more settings of this job's Spark session"
_GROUPS: Final = "into how many groups the shapes are hashed; fixed for the checkpoint's lifetime"
_PARTITIONS: Final = "the query's shuffle partitions, about the number of cores; fixed for the checkpoint's lifetime"
_TRIGGER: Final = "the interval of the micro-batches; or `available_now`: process what is there and stop"

_ALL: Final = (
    _key("postgres", "options", None, "a URI or connection string of libpq, or its keywords"),
    _key("kafka.bootstrap_servers", "text", None, 'the brokers; `kafka: "host:port"` says the same'),
    _key("kafka.options", "options", "-none", "librdkafka's, such as TLS and SASL; Spark's are derived"),
    _key("kafka.spark_options", "options", "-derived", "options of Spark's Kafka source, if they cannot be derived"),
    _key("kafka.topic_prefix", "text", "flushtracker", "topics are `<prefix>.fragments`, `.flushes` and so on"),
    _key("kafka.partitions", "integer", "4", "of a new topic"),
    _key("kafka.replication_factor", "integer", "3", "of a new topic; 1 with a single broker"),
    _key("kafka.retention", "duration", '"7 days"', "of the topics that are not compacted, and what the jobs require"),
    _key("kafka.max_event_bytes", "integer", "67108864", "the largest record"),
    _key(
        "kafka.retry_timeout",
        "duration",
        "-60 seconds; the jobs 10 minutes",
        "for how long unavailable brokers are retried",
    ),
    _key("files.path", "text", None, "a folder of streams as files, instead of `kafka`; `files: PATH` says the same"),
    _key("files.max_files_per_trigger", "integer", "100", "files of each stream in a micro-batch"),
    _key("storage.path", "text", None, "a folder or URI for all tables and checkpoints; `storage: PATH` says the same"),
    _key("storage.s3", "options", "-the environment", "see [Object stores](#object-stores-storage)"),
    _key("storage.azure", "options", "-the environment", "see [Object stores](#object-stores-storage)"),
    _key("storage.gcs", "options", "-the environment", "see [Object stores](#object-stores-storage)"),
    _key("storage.options", "options", "-none", "further options of the deltalake package"),
    _key("shapes", "text", None, "the [shapes file](#shapes), or a [folder](#a-folder-of-files) of them"),
    _key("spark", "options", "-none", "further settings of all jobs' Spark sessions, by their full names"),
    _key("capture.slot", "text", "flushtracker", "the replication slot"),
    _key("capture.publication", "text", "flushtracker", "the [publication](#the-publication)"),
    _key("capture.failover", "boolean", "true", "whether a new slot is a failover slot"),
    _key("capture.replica_identity", "text", "-never altered", "or `full`: see [REPLICA IDENTITY](#replica-identity)"),
    _key("capture.max_batch_size", "integer", "100", "changes in a fragment"),
    _key("capture.max_batch_bytes", "integer", "2097152", "bytes of rows in a fragment"),
    _key("capture.max_tx_size", "integer", "-no limit", "bytes in a transaction; a larger one stops capture"),
    _key("capture.intervals.status", "duration", '"1 second"', "between status updates to the server"),
    _key("capture.intervals.acks", "duration", '"1 second"', "between reads of the ack table"),
    _key("capture.intervals.keepalive", "duration", '"5 seconds"', "between keepalive fragments without changes"),
    _key("capture.intervals.shapes", "duration", '"2 seconds"', "between checks of the shapes"),
    _key("capture.intervals.heartbeat", "duration", "-off", "between writes of a few bytes of WAL"),
    _key("capture.evict.remove_after", "duration", "-off", "see [eviction](operating.md#eviction)"),
    _key("capture.evict.or_when_retained", "text", "-off", "see [eviction](operating.md#eviction)"),
    _key("capture.evict.at_most_per_hour", "integer", "-1", "see [eviction](operating.md#eviction)"),
    _key("capture.evict.at_least", "size", "-16 MiB", "see [eviction](operating.md#eviction)"),
    _key("capture.evict.grace", "duration", "-1 minute", "see [eviction](operating.md#eviction)"),
    _key("capture.evict.if_writer_is_down", "boolean", "-false", "see [eviction](operating.md#eviction)"),
    _key("track.trigger", "text", '"1 second"', _TRIGGER),
    _key("track.stall_grace", "duration", '"60 seconds"', "a pending shape without progress for this long is stalled"),
    _key("track.checkpoint", "text", "-below storage", "Spark's checkpoint of this job"),
    _key("track.shape_groups", "integer", "16", _GROUPS),
    _key("track.shuffle_partitions", "integer", "4", _PARTITIONS),
    _key("track.max_pending_transactions", "integer", "4096", "of a shape, that are tracked exactly"),
    _key("track.options", "options", "-none", _SPARK_OPTIONS),
    _key("track.spark", "options", "-none", _SPARK),
    _key("write.trigger", "text", '"1 second"', _TRIGGER),
    _key("write.write_unit", "text", "txn_fragment", "or `txn`: a shape's transaction is written when it has ended"),
    _key("write.flush", "text", "batch", "or `hold`: each shape flushes by its own `flush`"),
    _key("write.snapshot", "text", "auto", "this job takes the snapshots; `manual`: `flushtracker snapshot` does"),
    _key("write.delete_after", "duration", "-kept", "the log of a removed or ended shape is deleted then"),
    _key("write.retain.history", "duration", "-kept", "older history of shapes is folded"),
    _key("write.retain.shapes", "durations", "-none", "the same for single shapes, by id"),
    _key("write.checkpoint", "text", "-below storage", "Spark's checkpoint of this job"),
    _key("write.shape_groups", "integer", "16", _GROUPS),
    _key("write.shuffle_partitions", "integer", "4", _PARTITIONS),
    _key("write.options", "options", "-none", _SPARK_OPTIONS),
    _key("write.spark", "options", "-none", _SPARK),
    _key("snapshot.postgres", "options", "-none", "keywords of libpq instead of those of `postgres`, such as `user`"),
    _key("snapshot.connections", "integer", "-1 in `write`, else 2", "connections that read at the same time"),
    _key("snapshot.lock_timeout", "duration", '"10 seconds"', "how long to wait for the lock on a table"),
    _key("snapshot.statement_timeout", "duration", "-none", "limit for reading one range of a table"),
    _key("snapshot.max_attempt", "duration", '"5 hours"', "how long one attempt may take"),
    _key("snapshot.into", "text", "log", "or `kafka`: publish the rows for writers of other storages"),
    _key("snapshot.trigger", "text", "available_now", "of `flushtracker snapshot`: or an interval, to look again"),
    _key("snapshot.spark", "options", "-none", _SPARK),
    _key("serve.listen", "text", "127.0.0.1:9470", "host and port of `/v1/shape`"),
    _key("serve.secret", "text", "-none", "a request without it as `secret` gets a 401"),
    _key("serve.allow_origins", "texts", "-none", "origins whose pages may read answers (CORS)"),
    _key("serve.allow_headers", "texts", "-none", "headers that such pages may send besides the usual ones"),
    _key("serve.hosts", "texts", "-none", "names by which a server on loopback may be addressed"),
    _key("serve.connections", "integer", "10000", "more get a 503"),
    _key("serve.cache.memory", "size", '"64 MB"', "parts of logs that are kept in memory"),
    _key("serve.cache.disk", "size", '"2 GB"', "larger parts, and the rows of shapes, in temporary files"),
    _key("serve.source", "text", "-any", "whose shapes are served, if several sources have the same"),
    _key("serve.poll", "duration", '"500 ms"', "between looks at the tables"),
    _key("serve.reads", "integer", "2", "threads that read logs, and as many that make rows for new clients"),
    _key("serve.on_demand", "texts", "-none", "tables of which clients may define parts of shapes"),
    _key("serve.on_demand_definitions", "integer", "1000", "how many such definitions are served at once"),
    _key("serve.subsets.rows", "integer", "100000", "how many rows a subset may have"),
    _key("serve.subsets.text_order", "text", "refused", "or `bytes`: subsets order texts so, whatever their collation"),
    _key("serve.tail", "boolean", "false", "changes before the log has them; needs `flushtracker[serve,writer]`"),
    _key("serve.tail_memory", "size", '"64 MB"', "changes of the tail that are kept in memory"),
    _key(
        "sink.topics", "options", None, "the topic of each shape of a [Kafka sink](kafka_sinks.md), by the shape's id"
    ),
    _key("sink.writer", "text", "kafka", "the `writer` of these shapes in the shapes file"),
    _key("sink.name", "text", "flushtracker", "`source.name` of the records, Debezium's `topic.prefix`"),
    _key("sink.database", "text", "-empty", "`source.db` of the records"),
    _key("sink.source", "text", "-any", "whose shapes these are, if several sources have the same"),
    _key("sink.poll", "duration", '"500 ms"', "between looks at what the consumer groups have committed"),
    _key(
        "status.listen",
        "text",
        "127.0.0.1:9464",
        "where `track` serves its status; `capture`, `write`, `snapshot`, `serve` and `sink` have the next five ports",
    ),
    *(
        _key(f"status.urls.{program}", "text", "-by `status.listen`", f"where others reach the status of `{program}`")
        for program in PROGRAMS
    ),
)
KEYS: Final[Mapping[str, ConfigKey]] = {key.path: key for key in _ALL}
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    section: tuple(
        dict.fromkeys(
            path.removeprefix(f"{section}.").partition(".")[0] if section else path.partition(".")[0]
            for path in KEYS
            if not section or path.startswith(f"{section}.")
        )
    )
    for section in dict.fromkeys(["", *(key.section for key in _ALL)])
}
"""The keys of each mapping in the file, by its path."""
SHORT: Final = {"kafka": "bootstrap_servers", "files": "path", "storage": "path"}
"""A section that may be a single text → the key that this is."""
MAY_BE_OFF: Final = frozenset({*PROGRAMS, "status"})
"""Sections that may be ``false``: no such program, or no status."""

_TYPES: Final[Mapping[str, dict[str, Any]]] = {
    "text": {"type": ["string", "number"]},
    "duration": {"type": "string", "description": DURATION_FORM},
    "size": {"type": "string", "description": BYTES_FORM},
    "integer": {"type": ["integer", "string"]},
    "boolean": {"type": ["boolean", "string"]},
    "texts": {"type": "array", "items": {"type": "string"}},
    "options": {"type": "object"},
    "durations": {"type": "object", "additionalProperties": {"type": "string"}},
}


def json_schema() -> dict[str, Any]:
    """A JSON Schema for editors. A number or a boolean may also be a variable, ``${NAME}``, which is a string."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "flushtracker.yaml",
        **_section_schema(""),
        "anyOf": [{"required": ["postgres", "kafka", "storage", "shapes"]}, {"required": ["files", "storage"]}],
    }


def _section_schema(section: str) -> dict[str, Any]:
    properties = dict(_properties(section))
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _properties(section: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in SECTIONS[section]:
        path = f"{section}.{name}" if section else name
        if path in SECTIONS:
            schema = _section_schema(path)
            if path in SHORT or path in MAY_BE_OFF:
                schema = {"anyOf": [{"type": "string"} if path in SHORT else {"const": False}, schema]}
        else:
            key = KEYS[path]
            about = f"{key.about} (default: {key.default_text})"
            schema = {**_TYPES[key.kind], "description": about}
            if path == "postgres":
                schema["type"] = ["string", "object"]
        yield name, schema
