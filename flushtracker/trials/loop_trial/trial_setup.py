"""``TrialSetup``: the names and places of everything that a trial uses, and its programs' configurations.

Everything is new and has the trial's name: the schema, the publication, the slot, the topics, and a folder for tables
and checkpoints. So nothing that existed before is touched.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from flushtracker.config.file_kinds import LOOP, read_kind
from flushtracker.config.postgres_config import read_connection
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.storage_config import deltalake_options, read_storage
from flushtracker.config.strict_yaml import YamlMapping
from flushtracker.events.topic_rules import ROLES, Topics
from flushtracker.kafka.kafka_config import KafkaConfig, read_options
from flushtracker.trials.local.postgres import HOST, free_port

Part = Literal["capture", "tracker", "writers", "tail_server", "plain_server"]
SERVERS: Final[tuple[Part, ...]] = ("tail_server", "plain_server")
"""They serve the same log; one has a tail."""

PARTS: Final[tuple[Part, ...]] = get_args(Part)

_VARIABLE: Final = "FLUSHTRACKER_TRIAL_{}"
_STATE: Final = {"shape_groups": 2, "shuffle_partitions": 1}
_TRIGGER: Final = "200 ms"
_INTERVALS: Final = {"status": "200 ms", "acks": "200 ms", "keepalive": "2 seconds", "shapes": "1 second"}
_RETRY_TIMEOUT: Final = "5 minutes"
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """``name`` is used for schema, publication and slot; ``files`` has the programs' configurations.

    ``ports`` are those of the two servers. ``env`` has the values that the files refer to, because any of them may be
    secret.
    """

    name: str
    connection: SecretOptions
    kafka: KafkaConfig
    acks: str
    log: str
    registry: str
    storage_options: Mapping[str, str]
    shapes_file: Path
    files: Mapping[Part, Path]
    ports: Mapping[Part, int]
    env: Mapping[str, str]


def create_setup(file: Path, name: str, folder: Path, *, flush: str, write_unit: str) -> TrialSetup:
    """Read a file such as ``conf/conformance_loop.yaml``, and write the programs' configurations into ``folder``.

    Raises:
        ConfigError: the message names the file, the line and the key.
    """
    root = read_kind(file, LOOP)
    root.allow("postgres", "kafka", "source", "place", "storage", "storage_options", "spark")
    place, values = f"{root.text('place').value.rstrip('/')}/{name}", _Values()
    postgres = root.mapping("postgres")
    postgres.allow("connection")
    setup = TrialSetup(
        name=name,
        connection=read_connection(postgres),
        kafka=_kafka(root.mapping("kafka"), name),
        acks=f"{place}/acks",
        log=f"{place}/log",
        registry=f"{place}/log_shapes",
        storage_options=deltalake_options(read_storage(root), root),
        shapes_file=folder / "shapes.yaml",
        files={part: folder / f"{part}.yaml" for part in PARTS},
        ports={part: free_port() for part in SERVERS},
        env=values.env,
    )
    clients = _Clients(
        connection=values.refer(setup.connection),
        brokers=values.refer(setup.kafka.options),
        streams=values.refer(_source_options(root)),
        storage_options=values.refer(_scalars(root, "storage_options")),
    )
    storage, spark = _storage(root, values), values.refer(_scalars(root, "spark"))
    settings = {
        "capture": _capture(setup, clients),
        "tracker": _tracker(setup, place, clients) | {"spark": spark},
        "writers": _writers(setup, place, clients, flush) | {"spark": spark, "write_unit": write_unit},
        "tail_server": _server(setup, "tail_server", clients) | {"tail": _tail(setup, clients)},
        "plain_server": _server(setup, "plain_server", clients),
    }
    for part, path in setup.files.items():
        # JSON is YAML.
        path.write_text(json.dumps(settings[part] | {"storage": storage}, indent=2))
    return setup


@dataclass(frozen=True, slots=True)
class _Clients:
    """The options of each library, as references to variables."""

    connection: Mapping[str, str]
    brokers: Mapping[str, str]
    streams: Mapping[str, str]
    storage_options: Mapping[str, str]


def _kafka(section: YamlMapping, name: str) -> KafkaConfig:
    section.allow("bootstrap_servers", "options", "partitions", "replication_factor")
    return KafkaConfig(
        section.text("bootstrap_servers").value,
        Topics(**{role: f"{name}.{role}" for role in ROLES}),
        read_options(section.optional_mapping("options")),
        partitions=section.integer("partitions", default=2, at_least=1),
        replication_factor=section.integer("replication_factor", default=3, at_least=1),
    )


class _Values:
    """Replaces option values by references to variables."""

    def __init__(self) -> None:
        self.env: dict[str, str] = {}

    def refer(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the same options, with a reference to a new variable as each value."""
        found = {}
        for name, value in options.items():
            variable = _VARIABLE.format(len(self.env))
            self.env[variable] = value
            found[name] = f"${{{variable}}}"
        return found


def _storage(root: YamlMapping, values: _Values) -> dict[str, Any]:
    section = root.optional_mapping("storage")
    stores = {} if section is None else {name: section.mapping(name).scalars() for name in section}
    found: dict[str, Any] = {}
    for name, store in stores.items():
        texts = values.refer({key: value for key, value in store.items() if value not in _BOOLEANS})
        found[name] = texts | {key: _BOOLEANS[value] for key, value in store.items() if value in _BOOLEANS}
    return found


def _source_options(root: YamlMapping) -> dict[str, str]:
    source = root.optional_mapping("source")
    if source is None:
        return {}
    source.allow("options")
    return _scalars(source, "options")


def _scalars(section: YamlMapping, key: str) -> dict[str, str]:
    """Return the options at a key; empty if the key is missing."""
    options = section.optional_mapping(key)
    return {} if options is None else options.scalars()


def _capture(setup: TrialSetup, clients: _Clients) -> dict[str, Any]:
    kafka = setup.kafka
    return {
        "postgres": {"connection": clients.connection, "slot": setup.name, "publication": setup.name},
        "shapes": str(setup.shapes_file),
        "acks": setup.acks,
        "storage_options": clients.storage_options,
        "kafka": {
            "bootstrap_servers": kafka.bootstrap_servers,
            "topics": kafka.topics.by_role(),
            "options": clients.brokers,
            "partitions": kafka.partitions,
            "replication_factor": kafka.replication_factor,
            "retry_timeout": _RETRY_TIMEOUT,
        },
        "intervals": _INTERVALS,
        # So small that transactions have many fragments.
        "max_batch_size": 20,
    }


def _tracker(setup: TrialSetup, place: str, clients: _Clients) -> dict[str, Any]:
    topics = setup.kafka.topics
    return {
        "source": {**_streams(setup, clients), "fragments": topics.fragments, "flushes": topics.flushes},
        "state": {"checkpoint": f"{place}/checkpoint", **_STATE},
        "sink": {
            "acks": setup.acks,
            "dead_letters": f"{place}/dead_letters",
            "storage_options": clients.storage_options,
        },
        "trigger": _TRIGGER,
    }


def _writers(setup: TrialSetup, place: str, clients: _Clients, flush: str) -> dict[str, Any]:
    topics = setup.kafka.topics
    # With these, clients over HTTP are told of cuts, up to which they must have everything.
    acks = {"acks": setup.acks} if flush == "batch" else {}
    return {
        **acks,
        "flush": flush,
        "source": {**_streams(setup, clients), "shape_changes": topics.shape_changes, "shapes": topics.shapes},
        "flushes": {"topic": topics.flushes, "options": clients.brokers},
        "state": {"checkpoint": f"{place}/write_checkpoint", **_STATE},
        "sink": {"log": setup.log, "shapes": setup.registry, "storage_options": clients.storage_options},
        "snapshot": "auto",
        "postgres": {"connection": clients.connection, "publication": setup.name, "connections": 1},
        "trigger": _TRIGGER,
    }


def _server(setup: TrialSetup, part: Part, clients: _Clients) -> dict[str, Any]:
    return {
        "sink": {"log": setup.log, "shapes": setup.registry, "storage_options": clients.storage_options},
        "http": {"listen": f"{HOST}:{setup.ports[part]}"},
        "poll": _TRIGGER,
    }


def _tail(setup: TrialSetup, clients: _Clients) -> dict[str, Any]:
    kafka = setup.kafka
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "shape_changes": kafka.topics.shape_changes,
        "options": clients.brokers,
    }


def _streams(setup: TrialSetup, clients: _Clients) -> dict[str, Any]:
    return {
        "format": "kafka",
        "bootstrap_servers": setup.kafka.bootstrap_servers,
        "options": clients.streams,
        "retry_timeout": _RETRY_TIMEOUT,
    }
