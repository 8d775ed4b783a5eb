"""``flushtracker read``: prints a shape's rows or its log, once or as they are written."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from flushtracker.delta.shape_log_reader import ShapeLogReader, ShapeRead
from flushtracker.errors import ShapeEndedError
from flushtracker.process.program import StopRequest, print_status
from flushtracker.read.output import log_rows, write_csv, write_jsonl, write_log_jsonl, write_table
from flushtracker.wal.log_offset import LogOffset

_POLL_S: Final = 1.0


def run(arguments: argparse.Namespace) -> int:
    """Print what the arguments ask for; a reader of stdout may leave at any time."""
    if arguments.follow:
        StopRequest()
    try:
        _Printer(arguments).run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        if not arguments.follow:
            raise
    except BrokenPipeError:
        # Python flushes stdout again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _Printer:
    """Prints each read; of the log, only what follows the one before."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._reader = ShapeLogReader(arguments.log, arguments.shapes)
        self._printed: ShapeRead | None = None

    def run(self) -> None:
        self._print(self._read(even_if_ended=self._arguments.even_if_ended))
        while self._arguments.follow:
            time.sleep(_POLL_S)
            if not self._reader.has_changed():
                continue
            try:
                self._print(self._read(even_if_ended=self._arguments.even_if_ended))
            except ShapeEndedError:
                # What was written before its end is still printed.
                self._print(self._read(even_if_ended=True))
                raise

    def _read(self, *, even_if_ended: bool) -> ShapeRead:
        arguments = self._arguments
        if arguments.log_rows:
            after: LogOffset | None = arguments.after
            snapshot: int | None = None
            if self._printed is not None and self._printed.bound is not None:
                after, snapshot = self._printed.bound, self._printed.snapshot
            return self._reader.read_log(
                arguments.shape, after, arguments.source, snapshot=snapshot, even_if_ended=even_if_ended
            )
        return self._reader.read_rows(
            arguments.shape, arguments.at, arguments.source, typed=arguments.typed, even_if_ended=even_if_ended
        )

    def _print(self, read: ShapeRead) -> None:
        before, self._printed = self._printed, read
        if before is not None and (before.bound, before.snapshot) == (read.bound, read.snapshot):
            return
        rows = log_rows(read) if self._arguments.log_rows else read.rows
        self._write(rows, is_first=before is None)
        sys.stdout.flush()
        reached = "no whole transaction yet" if read.bound is None else f"up to {read.bound}"
        subject = f"shape {read.shape_id} of source {read.source}"
        print_status("flushtracker read", f"{subject}: {len(rows):,} rows, {reached}", self._arguments.log_format)

    def _write(self, rows: pa.Table, *, is_first: bool) -> None:
        is_log: bool = self._arguments.log_rows
        header = is_first or not is_log
        writers: dict[str, Callable[[], None]] = {
            "table": lambda: write_table(rows, sys.stdout, header=header),
            "csv": lambda: write_csv(rows, sys.stdout, header=header),
            "jsonl": lambda: (write_log_jsonl if is_log else write_jsonl)(rows, sys.stdout),
        }
        writers[self._arguments.format]()
