"""Replay a recording of PostgreSQL's WAL as the streams that track_flushes reads.

Decodes the recording, routes its changes over the shapes, and writes the
streams DIR/fragments, DIR/flushes and DIR/shape_changes. The notifications in
flushes are those of simulated writers, each with its shape's flush policy.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from flushtracker.command_line import run_program
from flushtracker.files_transport import StreamWriter, require_empty
from flushtracker.lsn import format_lsn
from flushtracker.recording import read_frames
from flushtracker.replay import Replay
from flushtracker.shapes_file import load_shapes

_EPILOG = """\
exit codes: 0 done; 1 anything not foreseen; 2 the arguments, the shapes or the
output; 3 a bad recording
"""
_STREAMS = ("fragments", "flushes", "shape_changes")
_PROGRESS_SECONDS = 5


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    return run_program("replay_wal", partial(_replay, arguments), verbose=arguments.verbose)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--recording", type=Path, required=True, metavar="DIR", help="a directory with frames.bin.gz, or such a file")
    add("--shapes", type=Path, required=True, metavar="FILE", help="such as conf/shapes.yaml")
    add("--out", type=Path, required=True, metavar="DIR", help="gets the streams; they must have no files there yet")
    add("--source", type=_name, default="recording/1/shapes", metavar="NAME", help="default: %(default)s")
    add("--max-batch-size", type=_limit, default=100, metavar="N", help="changes in a fragment (default: %(default)s)")
    add("--max-tx-size", type=_limit, metavar="N", help="changes in a transaction; over it is an error (default: any)")
    add(
        "--fragments-per-file",
        type=_limit,
        default=12,
        metavar="N",
        help="fragments in a file, at least (default: %(default)s)",
    )
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
    directories = {stream: arguments.out / stream for stream in _STREAMS}
    require_empty(
        directories.values(),
        "remove the streams with the checkpoint and the tables made of them, or name another --out",
    )
    writers = {stream: StreamWriter(directory) for stream, directory in directories.items()}
    files = 0
    reported = started
    for tick in replay.ticks(frames):
        for stream, events in (
            ("shape_changes", tick.shape_changes),
            ("fragments", tick.fragments),
            ("flushes", tick.flushes),
        ):
            files += writers[stream].publish(event.to_json() for event in events) is not None
        if time.monotonic() - reported >= _PROGRESS_SECONDS:
            reported = time.monotonic()
            print(f"replay_wal: {_progress(replay)} so far", file=sys.stderr)
    print(
        f"replay_wal: {_progress(replay)}; {len(replay.counts.shape_ids)} of {len(definitions)} shapes took part; "
        f"{files} files in {arguments.out}, {time.monotonic() - started:.1f} s",
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
