"""``flushtracker replay``: replays a recording into streams, from its arguments to its exit code."""

import argparse
import time
from functools import partial
from typing import Final

from flushtracker.kafka.kafka_config import load_kafka_config
from flushtracker.process.program import log_to_stderr, print_status
from flushtracker.recordings.recording import read_recording
from flushtracker.recordings.replay import Replay, require_tables
from flushtracker.recordings.replay_output import FilesOutput, KafkaOutput, Output
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.wal.lsn import format_lsn

_PROGRESS_SECONDS: Final = 5


def run(arguments: argparse.Namespace) -> int:
    """Replay the whole recording, with progress on stderr."""
    log_to_stderr(log_format=arguments.log_format)
    say = partial(print_status, "flushtracker replay", log_format=arguments.log_format)
    started = time.monotonic()
    definitions = load_shapes(arguments.shapes)
    replay = Replay(
        arguments.source,
        definitions,
        max_batch_size=arguments.max_batch_size,
        max_tx_size=arguments.max_tx_size,
        fragments_per_tick=arguments.fragments_per_file,
    )
    require_tables(definitions, read_recording(arguments.recording))
    frames = read_recording(arguments.recording)
    output: Output = FilesOutput(arguments.out) if arguments.out else KafkaOutput(load_kafka_config(arguments.kafka))
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
