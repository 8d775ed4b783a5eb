"""``TrialSetup``: the names and places of everything that a trial uses, and its programs' configurations.

Everything is new and has the trial's name: the schema, the publication, the slot, the topics, and a folder for tables
and checkpoints. So nothing that existed before is touched.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from flushtracker.config.one_file import OneFile, read_config
from flushtracker.config.postgres_config import read_connection
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.storage_config import deltalake_options
from flushtracker.events.topic_rules import ROLES, Topics
from flushtracker.kafka.kafka_config import KafkaConfig, read_kafka
from flushtracker.local.free_ports import HOST, free_port

Part = Literal["capture", "tracker", "writers", "tail_server", "plain_server"]
SERVERS: Final[tuple[Part, ...]] = ("tail_server", "plain_server")
"""They serve the same log; one has a tail."""

PARTS: Final[tuple[Part, ...]] = get_args(Part)

_VARIABLE: Final = "FLUSHTRACKER_TRIAL_{}"
_TRIGGER: Final = "200 ms"
_JOB: Final = {"trigger": _TRIGGER, "shape_groups": 2, "shuffle_partitions": 1}
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
    """Read a file such as ``conf/flushtracker.yaml``, and write the programs' configurations into ``folder``.

    Raises:
        ConfigError: the message names the file, the line and the key.
    """
    given = read_config(file)
    place, values = f"{given.place('conformance')}/{name}", _Values()
    setup = TrialSetup(
        name=name,
        connection=read_connection(given),
        kafka=replace(read_kafka(given), topics=Topics(**{role: f"{name}.{role}" for role in ROLES})),
        acks=f"{place}/acks",
        log=f"{place}/log",
        registry=f"{place}/log_shapes",
        storage_options=deltalake_options(given.section("storage")),
        shapes_file=folder / "shapes.yaml",
        files={part: folder / f"{part if part in SERVERS else 'flushtracker'}.yaml" for part in PARTS},
        ports={part: free_port() for part in SERVERS},
        env=values.env,
    )
    settings = {
        "postgres": values.refer(setup.connection),
        "kafka": _kafka(setup.kafka, name) | values.refer_all(given, "kafka", "options", "spark_options"),
        "storage": {"path": place} | values.refer_all(given, "storage", "s3", "azure", "gcs", "options"),
        "shapes": str(setup.shapes_file),
        "spark": values.refer(given.options("spark")),
        # So small that transactions have many fragments.
        "capture": {"slot": name, "publication": name, "intervals": _INTERVALS, "max_batch_size": 20},
        "track": _JOB | values.refer_all(given, "track", "options", "spark"),
        "write": _JOB
        | {"flush": flush, "write_unit": write_unit}
        | values.refer_all(given, "write", "options", "spark"),
        "status": False,
    }
    for part, path in setup.files.items():
        port, tail = setup.ports.get(part, 0), part == "tail_server"
        serve = {"listen": f"{HOST}:{port}", "poll": _TRIGGER, "tail": tail} if part in SERVERS else False
        # JSON is YAML.
        path.write_text(json.dumps({**settings, "serve": serve}, indent=2))
    return setup


def _kafka(kafka: KafkaConfig, name: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic_prefix": name,
        "partitions": kafka.partitions,
        "replication_factor": kafka.replication_factor,
        "retry_timeout": _RETRY_TIMEOUT,
    }


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

    def refer_all(self, file: OneFile, section: str, *names: str) -> dict[str, Any]:
        """The same of options of a section; a boolean stays one."""
        found = dict[str, Any]()
        for name in names:
            options = file.options(f"{section}.{name}")
            texts = self.refer({key: value for key, value in options.items() if value not in _BOOLEANS})
            if options:
                found[name] = texts | {key: _BOOLEANS[value] for key, value in options.items() if value in _BOOLEANS}
        return found
