"""``flushtracker replay``: replays a recording into files or topics."""

import argparse
import time
from collections import defaultdict
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from flushtracker.config.streams import FRAGMENTS, SHAPE_CHANGES, SHAPES
from flushtracker.errors import ConfigError
from flushtracker.event_files import StreamWriter, require_empty
from flushtracker.events.records import record_of
from flushtracker.events.topic_rules import MAX_EVENT_BYTES
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from flushtracker.process.program import log_to_stderr, print_status
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.recordings.recording import read_recording
from flushtracker.trials.recordings.replay import Replay, Tick, require_tables
from flushtracker.wal.lsn import format_lsn

_STREAMS: Final = (FRAGMENTS, SHAPE_CHANGES, SHAPES)
_PROGRESS_SECONDS: Final = 5


class FilesOutput:
    """One directory per stream below ``out``; a tick adds a file to each stream that it has events for.

    As in :class:`KafkaOutput`, events are durable when :meth:`publish` returns.
    """

    def __init__(self, out: Path) -> None:
        directories = {stream: out / stream for stream in _STREAMS}
        require_empty(
            directories.values(),
            "remove the streams together with the checkpoint and tables made from them, or name another --out",
        )
        self._out = out
        try:
            self._writers = {stream: StreamWriter(directory) for stream, directory in directories.items()}
        except ConfigError as error:
            raise ConfigError(f"--out {out}: {error}") from error
        self._files = 0

    def publish(self, tick: Tick) -> None:
        lines = defaultdict[str, list[str]](list)
        for record in map(record_of, tick.events()):
            lines[record.stream].append(record.value)
        for stream, texts in lines.items():
            self._files += self._writers[stream].publish(texts) is not None

    def summary(self) -> str:
        return f"{self._files} files in {self._out}"


class KafkaOutput:
    """The topics of ``config``; each tick is confirmed before the next is published."""

    def __init__(self, config: KafkaConfig) -> None:
        require_topics(config, _STREAMS)
        count = TopicAdmin(config).record_count(FRAGMENTS)
        if count:
            raise ConfigError(
                f"topic {config.topics.fragments} already has records ({count}); remove the topics together "
                "with the checkpoint and tables made from them, or name others"
            )
        self._servers = config.bootstrap_servers
        self._topics = config.topics.by_role()
        self._publisher = KafkaPublisher(config)
        self._records = 0

    def publish(self, tick: Tick) -> None:
        for record in map(record_of, tick.events()):
            self._publisher.publish(self._topics[record.stream], record.key, record.value)
            self._records += 1
        self._publisher.flush(inf)

    def summary(self) -> str:
        return f"{self._records:,} records at {self._servers}"


def run(arguments: argparse.Namespace) -> int:
    """Replay the whole recording, with progress on stderr."""
    log_to_stderr(log_format=arguments.log_format)
    say = partial(print_status, "flushtracker replay", log_format=arguments.log_format)
    started = time.monotonic()
    definitions = load_shapes(arguments.shapes)
    kafka = None if arguments.out else load_kafka_config(arguments.kafka)
    replay = Replay(
        arguments.source,
        definitions,
        max_batch_size=arguments.max_batch_size,
        max_tx_size=arguments.max_tx_size,
        fragments_per_tick=arguments.fragments_per_file,
        max_event_bytes=MAX_EVENT_BYTES if kafka is None else kafka.max_event_bytes,
    )
    require_tables(definitions, read_recording(arguments.recording))
    frames = read_recording(arguments.recording)
    output = FilesOutput(arguments.out) if kafka is None else KafkaOutput(kafka)
    first = reported = time.monotonic()
    for tick in replay.ticks(frames):
        output.publish(tick)
        if arguments.rate is not None:
            time.sleep(max(0.0, first + replay.counts.fragments / arguments.rate - time.monotonic()))
        if time.monotonic() - reported >= _PROGRESS_SECONDS:
            reported = time.monotonic()
            say(f"{_progress(replay)} so far")
    say(
        f"{_progress(replay)}; {len(replay.counts.shape_ids)} of {len(definitions)} shapes took part; "
        f"{output.summary()}, {time.monotonic() - started:.1f} s"
    )
    if replay.in_transaction:
        say("the recording ends inside a transaction, which stays open")
    return 0


def _progress(replay: Replay) -> str:
    counts = replay.counts
    last = "" if counts.last_commit is None else f", up to commit {format_lsn(counts.last_commit.tx_offset)}"
    return f"{counts.transactions:,} transactions{last}: {counts.fragments:,} fragments, {counts.changes:,} changes"
