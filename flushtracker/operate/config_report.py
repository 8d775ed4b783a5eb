"""``flushtracker config``: prints what is in force for every program, and from where; secrets are not shown."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.config_keys import KEYS, PROGRAMS, ConfigKey, json_schema
from flushtracker.config.job_config import load_config
from flushtracker.config.one_file import JOBS, TABLES, OneFile, read_config
from flushtracker.config.postgres_config import read_connection, read_tables
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.transport import derived_options
from flushtracker.config.write_config import load_write_config
from flushtracker.kafka.kafka_config import read_kafka
from flushtracker.sinks.job.feed_config import load_feed_config

_SECRET: Final = re.compile(r"password|passwd|secret|token|credential|jaas|sas\b|key(?!store|tab|word)", re.IGNORECASE)
_READERS: Final[Mapping[str, Callable[[Path], object]]] = {
    "track": load_config,
    "capture": load_capture_config,
    "write": load_write_config,
    "snapshot": load_snapshot_config,
    "serve": load_serve_config,
    "sink": load_feed_config,
}


def run(arguments: argparse.Namespace) -> int:
    """Print the values, once every program has accepted what it would read."""
    if arguments.schema:
        sys.stdout.write(f"{json.dumps(json_schema(), indent=2)}\n")
        return 0
    file = read_config(arguments.config)
    for program in PROGRAMS:
        if program == "snapshot" and program not in file.off and file.publishes_snapshots:
            read_tables(file, connections=2)
        elif program not in file.off and not file.lacks(program):
            _READERS[program](arguments.config)
    sys.stdout.write(f"{arguments.config}: {', '.join(file.programs)}\n")
    lines = [
        (label, "…" if _SECRET.search(label) and source != "default" else value, source)
        for label, value, source in (*_values(file), *_derived(file))
    ]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    for label, value, source in lines:
        sys.stdout.write(f"{label:{widths[0]}}  {value:{widths[1]}}  {source}\n")
    return 0


def _values(file: OneFile) -> Iterator[tuple[str, str, str]]:
    """Each key of the file with its value and where it is from."""
    for key in KEYS.values():
        if file.lacks(key.section) or (key.is_required and key.path not in file.lines):
            continue
        section = file.section(key.section)
        if key.kind in {"options", "durations"}:
            yield from _options(file, key)
        elif key.name in section:
            yield key.path, section.in_a_line(key.name), file.source(key.path)
        elif key.name != "checkpoint":
            yield key.path, key.default_text.replace("`", ""), "default"


def _options(file: OneFile, key: ConfigKey) -> Iterator[tuple[str, str, str]]:
    """Variables are only filled in for the server, which is not known otherwise."""
    if key.path == "postgres":
        for name, value in read_connection(file).items():
            yield f"postgres.{name}", value, file.source("postgres")
    elif (options := file.section(key.section).optional_mapping(key.name)) is not None:
        for name, line in options.lines.items():
            if key.path == "sink.topics":
                topic = options.mapping(name)
                yield from (
                    (topic.label(each), topic.in_a_line(each), f"line {at}") for each, at in topic.lines.items()
                )
                continue
            shown = options.in_a_line(name) if key.name == "postgres" else str(options.node(name)[1].value)
            yield options.label(name), shown, f"line {line}"


def _derived(file: OneFile) -> Iterator[tuple[str, str, str]]:
    if not file.has_files:
        for stream, topic in read_kafka(file).topics.by_role().items():
            yield f"topic {stream}", topic, f"kafka.topic_prefix, {file.source('kafka.topic_prefix')}"
    storage = f"storage, {file.source('storage.path')}"
    for name in TABLES:
        yield name, file.place(name), storage
    for job in JOBS:
        if job not in file.off and f"{job}.checkpoint" not in file.lines:
            yield f"{job}.checkpoint", file.checkpoint(job), storage
        if job not in file.off and not file.has_files:
            for name, value in derived_options(file).items():
                yield f"{job} {name}", value, f"kafka.options, {file.source('kafka.options')}"
    for program in file.programs:
        if (status := file.status(program)) is not None:
            yield f"status of {program}", status.listen, f"status.listen, {file.source('status.listen')}"
