"""What each program reads of ``flushtracker.yaml``: its own keys, with the nodes and the names of the file."""

from collections.abc import Callable, Mapping
from typing import Final

import yaml

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.one_file import Entry, Form, OneFile, text_node
from flushtracker.config.storage_path import require_distinct_paths
from flushtracker.config.streams import FLUSHES, FRAGMENTS, SHAPE_CHANGES, SHAPES, SNAPSHOTS, SNAPSHOTS_TAKEN
from flushtracker.config.strict_yaml import YamlMapping

_HTTP: Final = ("listen", "secret", "allow_origins", "allow_headers", "hosts", "connections")
_STREAMS: Final = (FRAGMENTS, FLUSHES, SHAPES, SHAPE_CHANGES)


def capture_form(file: OneFile) -> Form:
    """What ``flushtracker capture`` and the commands on its slot read."""
    slot = _entries(file, "capture", "slot", "publication", "failover", "replica_identity")
    postgres: Form = {"connection": file.connection(), **slot}
    evict = _entries(file, "capture.evict", *("remove_after", "or_when_retained", "at_most_per_hour", "at_least"))
    evict = {**evict, **_entries(file, "capture.evict", "grace", "if_writer_is_down")}
    return {
        "postgres": postgres,
        "kafka": kafka_form(file),
        "shapes": file.entry("shapes"),
        "acks": file.place("acks"),
        "storage_options": file.options("storage.options") or None,
        "intervals": _entries(file, "capture.intervals", "status", "acks", "keepalive", "shapes", "heartbeat"),
        "evict": evict if any(evict.values()) else None,
        **_entries(file, "capture", "max_batch_size", "max_batch_bytes", "max_tx_size"),
        **_shared(file, "capture"),
    }


def kafka_form(file: OneFile) -> Form:
    """Brokers and topics, as for ``flushtracker topics``."""
    into_kafka = file.text("snapshot.into") == "kafka"
    keys = ("bootstrap_servers", "partitions", "replication_factor", "retention", "max_event_bytes", "retry_timeout")
    return {
        **_entries(file, "kafka", *keys),
        "options": file.options("kafka.options") or None,
        "topics": {
            stream: file.topic(stream) for stream in (*_STREAMS, *((SNAPSHOTS, SNAPSHOTS_TAKEN) if into_kafka else ()))
        },
    }


def track_form(file: OneFile) -> Form:
    return {
        "source": _source(file, "track", FRAGMENTS, FLUSHES),
        "state": {
            "checkpoint": file.checkpoint("track"),
            **_entries(file, "track", "shape_groups", "shuffle_partitions", "max_pending_transactions"),
        },
        "sink": {
            "acks": file.place("acks"),
            "dead_letters": file.place("dead_letters"),
            "storage_options": file.options("storage.options") or None,
        },
        "stall": {"grace": file.entry("track.stall_grace")},
        "trigger": file.entry("track.trigger"),
        "spark": file.options("spark", "track.spark") or None,
        **_shared(file, "track"),
    }


def write_form(file: OneFile) -> Form:
    takes_snapshots = file.text("write.snapshot") == "auto"
    return {
        "source": _source(file, "write", SHAPE_CHANGES, SHAPES),
        "flushes": {"topic": file.topic(FLUSHES), "options": file.options("kafka.options") or None},
        "state": {
            "checkpoint": file.checkpoint("write"),
            **_entries(file, "write", "shape_groups", "shuffle_partitions"),
        },
        "sink": {
            **_log(file),
            "delete_after": file.entry("write.delete_after"),
            "retain": _retain(file),
        },
        # Cuts need that a batch has appended what it read.
        "acks": file.place("acks") if file.text("write.flush") == "batch" else None,
        **_entries(file, "write", "write_unit", "flush", "snapshot", "trigger"),
        "postgres": _tables(file, connections="1") if takes_snapshots else None,
        "spark": file.options("spark", "write.spark") or None,
        **_shared(file, "write"),
    }


def snapshot_form(file: OneFile) -> Form:
    form: Form = {
        "postgres": _tables(file, connections="2"),
        "trigger": file.entry("snapshot.trigger"),
        "status": _status(file, "snapshot"),
    }
    if file.text("snapshot.into") == "kafka":
        return {**form, "kafka": kafka_form(file)}
    into = file.entry("snapshot.into")
    if file.text("snapshot.into") != "log" and into is not None:
        raise file.mapping({"into": into}).wrong("into", "log or kafka")
    return {
        **form,
        "sink": _log(file),
        "spark": file.options("spark", "snapshot.spark") or None,
        "storage": _stores(file),
    }


def serve_form(file: OneFile) -> Form:
    tail: Form | None = None
    if file.text("serve.tail") == "true":
        tail = {
            "bootstrap_servers": file.entry("kafka.bootstrap_servers"),
            SHAPE_CHANGES: file.topic(SHAPE_CHANGES),
            "options": file.options("kafka.options") or None,
            "memory": file.entry("serve.tail_memory"),
        }
    elif (entry := file.entry("serve.tail")) is not None:
        file.mapping({"tail": entry}).optional_boolean("tail")
    return {
        "sink": _log(file),
        "http": _entries(file, "serve", *_HTTP),
        "cache": _entries(file, "serve.cache", "memory", "disk"),
        **_entries(file, "serve", "source", "poll", "reads", "on_demand", "on_demand_definitions"),
        "subsets": _entries(file, "serve.subsets", "rows", "text_order"),
        "tail": tail,
        **_shared(file, "serve"),
    }


def log_form(file: OneFile) -> Form:
    """Where readers find the shape log."""
    return {"sink": _log(file), "storage": _stores(file)}


def loop_form(file: OneFile) -> Form:
    """Where ``flushtracker conformance-loop`` makes what it uses."""
    return {
        "postgres": {"connection": file.connection()},
        "kafka": {
            **_entries(file, "kafka", "bootstrap_servers", "partitions", "replication_factor"),
            "options": file.options("kafka.options") or None,
        },
        "source": {"options": file.spark_options("track")},
        "place": file.place("conformance"),
        "storage": _stores(file),
        "storage_options": file.options("storage.options") or None,
        "spark": file.options("spark") or None,
    }


FORMS: Final[Mapping[str, Callable[[OneFile], Form]]] = {
    "track": track_form,
    "capture": capture_form,
    "write": write_form,
    "snapshot": snapshot_form,
    "serve": serve_form,
}


def program_mapping(file: OneFile, form: Callable[[OneFile], Form]) -> YamlMapping:
    """What a program reads; raises ``ConfigError`` if the file says that there is no such program."""
    program = next((name for name in PROGRAMS if FORMS[name] is form), "")
    if program in file.off:
        raise file.root.error(program, "is false: this configuration has no such program")
    names = ("acks", "dead_letters", "log", "log_shapes")
    places = {
        **{name: file.place(name) for name in names},
        **{job: file.checkpoint(job) for job in ("track", "write")},
    }
    require_distinct_paths(file.mapping({"storage": places}), [("storage", name) for name in places])
    return file.mapping(form(file))


def _entries(file: OneFile, section: str, *names: str) -> dict[str, Entry | None]:
    return {name: file.entry(f"{section}.{name}") for name in names}


def _shared(file: OneFile, program: str) -> Form:
    return {"storage": _stores(file), "status": _status(file, program)}


def _stores(file: OneFile) -> "Form | None":
    return {name: store for name in ("s3", "azure", "gcs") if (store := file.options(f"storage.{name}"))} or None


def _log(file: OneFile) -> Form:
    return {
        "log": file.place("log"),
        "shapes": file.place("log_shapes"),
        "storage_options": file.options("storage.options") or None,
    }


def _retain(file: OneFile) -> "Form | None":
    history, shapes = file.entry("write.retain.history"), file.options("write.retain.shapes")
    return {"history": history, "shapes": shapes or None} if history is not None or shapes else None


def _tables(file: OneFile, *, connections: str) -> Form:
    return {
        "connection": file.connection("snapshot.postgres"),
        "publication": file.entry("capture.publication"),
        **_entries(file, "snapshot", "lock_timeout", "statement_timeout", "max_attempt"),
        "connections": file.entry("snapshot.connections")
        or Entry("snapshot.connections", yaml.ScalarNode("tag:yaml.org,2002:int", connections), 1, "default"),
    }


def _source(file: OneFile, program: str, *streams: str) -> Form:
    return {
        "format": Entry("kafka", text_node("kafka"), 1, "line 1"),
        **_entries(file, "kafka", "bootstrap_servers", "retention", "retry_timeout"),
        **{stream: file.topic(stream) for stream in streams},
        "options": file.spark_options(program) or None,
    }


def _status(file: OneFile, program: str) -> "Form | None":
    if "status" in file.off:
        return None
    urls = [text_node(file.status_url(name).replace("${", "$${")) for name in file.programs if name != program]
    peers = yaml.SequenceNode("tag:yaml.org,2002:seq", urls)
    return {"listen": file.listen(program), "peers": Entry("status.urls", peers, 1, "status")}
