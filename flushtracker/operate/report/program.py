"""``flushtracker report``: prints and plots the report on a source's acks, from its arguments to its exit code."""

import argparse
import io
import sys

from rich.console import Console

from flushtracker.config.job_config import load_config
from flushtracker.config.streams import FRAGMENTS
from flushtracker.config.transport import FilesTransport
from flushtracker.operate.report.figures import last_published_commit, make_report
from flushtracker.operate.report.plot import plot_report
from flushtracker.operate.report.tables import print_report
from flushtracker.tracking.acks.ack_reader import read_ack_history


def run(arguments: argparse.Namespace) -> int:
    """Print the tables and write the plot; return 1 unless everything is acknowledged."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The terminal's encoding may lack the dash, and names may contain any character.
        sys.stdout.reconfigure(errors="replace")
    config = load_config(arguments.config)
    history = read_ack_history(config.sink.acks, config.sink.storage_options, arguments.source)
    # With Kafka only the last commit seen by the job is known, not the last one published.
    is_files = isinstance(config.transport, FilesTransport)
    published = last_published_commit(config.transport.streams[FRAGMENTS], history.source) if is_files else None
    report = make_report(history, published)
    plot_report(report, arguments.plot)
    print_report(report, Console())
    print(f"plot: {arguments.plot}")
    return 0 if report.is_complete else 1
