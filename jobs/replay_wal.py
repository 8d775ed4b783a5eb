"""Replay a recording of PostgreSQL's WAL as the streams that track_flushes reads.

Decodes the recording, routes its changes over the shapes, and writes the
streams fragments, flushes and shape_changes: as directories of files below
DIR, or to the Kafka topics that FILE names. The notifications in flushes are
those of simulated writers, each with its shape's flush policy.

The streams begin with the recording, so they must be empty: the directories
without files, the topic of the fragments without records. The topics must be
there and right; see jobs/topics.py.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Protocol

from flushtracker.command_line import run_program
from flushtracker.errors import ConfigError
from flushtracker.files_transport import StreamWriter, require_empty
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.keys import flush_key, fragment_key, shape_key
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from flushtracker.lsn import format_lsn
from flushtracker.recording import read_frames
from flushtracker.replay import Replay, Tick
from flushtracker.shapes_file import load_shapes

_EPILOG = """\
exit codes: 0 done; 1 anything not foreseen; 2 the arguments, the shapes, the
output or the topics; 3 a bad recording; 6 Kafka cannot be reached, or refuses
what it is asked
"""
_STREAMS = ("fragments", "flushes", "shape_changes")
_PROGRESS_SECONDS = 5


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return run_program("replay_wal", partial(_replay, arguments), verbose=arguments.verbose)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--recording", type=Path, required=True, metavar="DIR", help="a directory with frames.bin.gz, or such a file")
    add("--shapes", type=Path, required=True, metavar="FILE", help="such as conf/shapes.yaml")
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("--out", type=Path, metavar="DIR", help="gets the streams as files")
    output.add_argument(
        "--kafka", type=Path, metavar="FILE", help="such as conf/kafka.yaml: the topics get the streams"
    )
    add("--source", type=_name, default="recording/1/shapes", metavar="NAME", help="default: %(default)s")
    add("--max-batch-size", type=_limit, default=100, metavar="N", help="changes in a fragment (default: %(default)s)")
    add("--max-tx-size", type=_limit, metavar="N", help="changes in a transaction; over it is an error (default: any)")
    add(
        "--fragments-per-file",
        type=_limit,
        default=12,
        metavar="N",
        help="fragments in a file, or confirmed together by Kafka, at least (default: %(default)s)",
    )
    add("--rate", type=_limit, metavar="N", help="fragments a second, about (default: as fast as it goes)")
    add("--verbose", action="store_true", help="a traceback with an error")
    return parser.parse_args(argv)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a source needs a name")
    return text


class _Output(Protocol):
    """Where the streams go."""

    def publish(self, tick: Tick) -> None:
        """Publish the tick's events, all of them durable when this returns."""

    def summary(self) -> str:
        """What was published so far, and where."""


class _Files:
    """Directories of files below ``out``, a file of each stream for a tick."""

    def __init__(self, out: Path) -> None:
        directories = {stream: out / stream for stream in _STREAMS}
        require_empty(
            directories.values(),
            "remove the streams with the checkpoint and the tables made of them, or name another --out",
        )
        self._out = out
        self._writers = {stream: StreamWriter(directory) for stream, directory in directories.items()}
        self._files = 0

    def publish(self, tick: Tick) -> None:
        for stream, events in (
            ("shape_changes", tick.shape_changes),
            ("fragments", tick.fragments),
            ("flushes", tick.flushes),
        ):
            self._files += self._writers[stream].publish(event.to_json() for event in events) is not None

    def summary(self) -> str:
        return f"{self._files} files in {self._out}"


class _Kafka:
    """The topics of ``config``; a tick is confirmed before the next is published."""

    def __init__(self, config: KafkaConfig) -> None:
        require_topics(config, _STREAMS)
        count = TopicAdmin(config).record_count("fragments")
        if count:
            raise ConfigError(
                f"topic {config.topics.fragments} has records already ({count}); remove the topics with the "
                "checkpoint and the tables made of them, or name others"
            )
        self._config = config
        self._publisher = KafkaPublisher(config)
        self._records = 0

    def publish(self, tick: Tick) -> None:
        topics, publish = self._config.topics, self._publisher.publish
        for changes in tick.shape_changes:
            publish(topics.shape_changes, shape_key(changes.source, changes.shape_id), changes.to_json())
        for fragment in tick.fragments:
            publish(topics.fragments, fragment_key(fragment.source), fragment.to_json())
        for flush in tick.flushes:
            publish(topics.flushes, flush_key(flush.source, flush.shape_id, flush.type), flush.to_json())
        self._publisher.flush(inf)
        self._records += len(tick.shape_changes) + len(tick.fragments) + len(tick.flushes)

    def summary(self) -> str:
        return f"{self._records:,} records at {self._config.bootstrap_servers}"


def _replay(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    definitions = load_shapes(arguments.shapes)
    replay = Replay(
        arguments.source,
        definitions,
        max_batch_size=arguments.max_batch_size,
        max_tx_size=arguments.max_tx_size,
        fragments_per_tick=arguments.fragments_per_file,
    )
    frames = read_frames(arguments.recording)
    output: _Output = _Files(arguments.out) if arguments.out else _Kafka(load_kafka_config(arguments.kafka))
    first = reported = time.monotonic()
    for tick in replay.ticks(frames):
        output.publish(tick)
        if arguments.rate is not None:
            time.sleep(max(0.0, first + replay.counts.fragments / arguments.rate - time.monotonic()))
        if time.monotonic() - reported >= _PROGRESS_SECONDS:
            reported = time.monotonic()
            print(f"replay_wal: {_progress(replay)} so far", file=sys.stderr)
    print(
        f"replay_wal: {_progress(replay)}; {len(replay.counts.shape_ids)} of {len(definitions)} shapes took part; "
        f"{output.summary()}, {time.monotonic() - started:.1f} s",
        file=sys.stderr,
    )
    if replay.in_transaction:
        print("replay_wal: the recording ends inside a transaction, which stays open", file=sys.stderr)
    return 0


def _progress(replay: Replay) -> str:
    counts = replay.counts
    last = "" if counts.last_commit is None else f", up to commit {format_lsn(counts.last_commit.tx_offset)}"
    return (
        f"{counts.transactions:,} transactions{last}: {counts.fragments:,} fragments, {counts.changes:,} changes, "
        f"{counts.flushes:,} flush notifications"
    )


if __name__ == "__main__":
    sys.exit(main())
