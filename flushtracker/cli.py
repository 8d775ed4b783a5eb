"""The command ``flushtracker``: its subcommands, their arguments, and the exit codes of each.

A subcommand's program is imported only when it runs: ``--help`` needs no Spark, and each program only its own extra.
``jobs/*.py`` call :func:`main` with the name of their subcommand.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

from flushtracker import __version__
from flushtracker.errors import ConfigError
from flushtracker.process.program import run_program
from flushtracker.wal.log_offset import LogOffset

_Parser: TypeAlias = argparse.ArgumentParser

_DESCRIPTION: Final = """\
The largest LSN that a PostgreSQL replication slot may confirm while many
writers flush at their own pace.
"""


@dataclass(frozen=True, slots=True)
class _Command:
    """A subcommand: ``run(arguments)`` of the module ``program``, which needs ``extra``, returns the exit code."""

    name: str
    program: str
    extra: str
    description: str
    exit_codes: str
    add_arguments: Callable[[_Parser], None]
    check: Callable[[argparse.Namespace], str | None] = lambda _: None
    """What is wrong with how the arguments are combined, if anything."""

    @property
    def summary(self) -> str:
        """The first paragraph of the description, for the list of subcommands."""
        return " ".join(self.description.partition("\n\n")[0].split())

    def run(self, arguments: argparse.Namespace) -> int:
        """Import the program and run it; raises ``ConfigError`` if one of its packages is not installed."""
        try:
            program = import_module(self.program)
        except ModuleNotFoundError as error:
            package = (error.name or str(error)).partition(".")[0]
            if not self.extra or package == "flushtracker":
                raise
            raise ConfigError(f"{package} is not installed; run: pip install 'flushtracker[{self.extra}]'") from error
        exit_code: int = program.run(arguments)
        return exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv``, by default the process's own, and return its exit code."""
    arguments = _parser().parse_args(argv)
    command: _Command = arguments.command
    if problem := command.check(arguments):
        arguments.parser.error(problem)
    return run_program(f"flushtracker {command.name}", partial(command.run, arguments), verbose=arguments.verbose)


def _parser() -> _Parser:
    parser = argparse.ArgumentParser(prog="flushtracker", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"flushtracker {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"exit codes: {command.exit_codes}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command, parser=subparser)
    return parser


def _add_track(parser: _Parser) -> None:
    _add_config(parser, "such as conf/track_flushes.yaml")
    parser.add_argument(
        "--recover",
        action="store_true",
        help="set the checkpoint aside and start over with what capture sent since its last start; for one start only",
    )
    parser.add_argument(
        "--abandon",
        action="append",
        default=[],
        metavar="SOURCE",
        help="with --recover: skip everything from a source for which capture will never run again; may be repeated",
    )
    _add_verbose(parser, "print Spark's own log, and tracebacks of errors")


def _check_track(arguments: argparse.Namespace) -> str | None:
    return "--abandon is only valid with --recover" if arguments.abandon and not arguments.recover else None


def _add_write(parser: _Parser) -> None:
    _add_config(parser, "such as conf/write_shapes.yaml")
    _add_verbose(parser, "print Spark's own log, and tracebacks of errors")


def _add_capture(parser: _Parser) -> None:
    _add_config(parser, "such as conf/capture.yaml")
    parser.add_argument("--create", action="store_true", help="create missing topics, publication and slot")
    parser.add_argument(
        "--new-epoch", action="store_true", help="continue as a new source, after the server was restored"
    )
    _add_verbose(parser, "log in more detail, and print tracebacks of errors")


def _add_topics(parser: _Parser) -> None:
    _add_config(parser, "such as conf/kafka.yaml")
    parser.add_argument("--create", action="store_true", help="create missing topics")
    _add_verbose(parser)


def _add_replay(parser: _Parser) -> None:
    add = parser.add_argument
    add(
        "--recording",
        type=Path,
        required=True,
        metavar="DIR",
        help="a directory with frames.bin.gz, or the file itself",
    )
    add("--shapes", type=Path, required=True, metavar="FILE", help="such as conf/shapes.yaml")
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("--out", type=Path, metavar="DIR", help="write the streams as files")
    output.add_argument("--kafka", type=Path, metavar="FILE", help="such as conf/kafka.yaml: publish to its topics")
    add("--source", type=_name, default="recording/1/shapes", metavar="NAME", help="default: %(default)s")
    add("--max-batch-size", type=_limit, default=100, metavar="N", help="changes per fragment (default: %(default)s)")
    add("--max-tx-size", type=_limit, metavar="N", help="changes per transaction; more is an error (default: no limit)")
    add(
        "--fragments-per-file",
        type=_limit,
        default=20,
        metavar="N",
        help="at least this many fragments per file, or confirmed together by Kafka (default: %(default)s)",
    )
    add("--rate", type=_limit, metavar="N", help="approximate fragments per second (default: no limit)")
    _add_verbose(parser)


def _add_report(parser: _Parser) -> None:
    _add_config(parser, "the configuration of `flushtracker track`")
    parser.add_argument("--source", metavar="NAME", help="the source to report on, if the table has several")
    parser.add_argument(
        "--plot", type=Path, default=Path("data/report.png"), metavar="FILE", help="default: %(default)s"
    )
    _add_verbose(parser)


def _add_read(parser: _Parser) -> None:
    add = parser.add_argument
    add("shape", type=_name, metavar="SHAPE", help="the shape's id")
    add("--log", required=True, metavar="PATH", help="the shape log: sink.log of the writer")
    add(
        "--shapes",
        metavar="PATH",
        help="the registry table: sink.shapes of the writer (default: PATH of --log + _shapes)",
    )
    add("--source", type=_name, metavar="NAME", help="the shape's source, if it has several")
    add("--log-rows", action="store_true", help="print the shape's log instead of its rows")
    add("--at", type=_offset, metavar="LSN+OP", help="print the rows as of this offset, such as 16/B374D848+inf")
    add("--after", type=_offset, metavar="LSN+OP", help="with --log-rows: only what follows this offset")
    add("--follow", action="store_true", help="go on, and print what is written, until Ctrl-C")
    add("--typed", action="store_true", help="cast the rows' values to the types of the table's columns")
    add("--format", choices=("table", "jsonl", "csv"), default="table", help="default: %(default)s")
    add("--even-if-ended", action="store_true", help="read a shape that was removed or has ended, if its log is there")
    _add_verbose(parser)


def _check_read(arguments: argparse.Namespace) -> str | None:
    if arguments.at is not None and (arguments.follow or arguments.log_rows):
        return "--at is only valid without --follow and --log-rows"
    if arguments.after is not None and not arguments.log_rows:
        return "--after is only valid with --log-rows"
    return "--typed is only valid without --log-rows" if arguments.typed and arguments.log_rows else None


def _add_verify(parser: _Parser) -> None:
    add = parser.add_argument
    add("--log", required=True, metavar="PATH", help="the shape log: sink.log of the writer")
    add("--recording", type=Path, required=True, metavar="DIR", help="the recording that was replayed")
    add("--shapes", type=Path, required=True, metavar="FILE", help="such as conf/shapes.yaml")
    _add_verbose(parser)


def _add_conformance(parser: _Parser) -> None:
    add = parser.add_argument
    add("--writer", required=True, metavar="COMMAND", help="runs the writer until it is killed")
    add("--dump", required=True, metavar="COMMAND", help="prints what is stored, as JSON lines; see docs/writers.md")
    add("--kafka", type=Path, metavar="FILE", help="such as conf/kafka.yaml (default: a broker on this machine)")
    add("--kills", type=_limit, default=20, metavar="N", help="rounds that end with a kill (default: %(default)s)")
    add("--timeout", type=_limit, default=60, metavar="S", help="seconds to notify something (default: %(default)s)")
    add("--seed", type=_limit, default=1, metavar="N", help="of the random changes and moments (default: %(default)s)")
    add(
        "--data",
        type=Path,
        default=Path("data/conformance"),
        metavar="DIR",
        help="each run makes a directory in it, with the writer's log and data (default: %(default)s)",
    )
    _add_verbose(parser)


def _add_demo(parser: _Parser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data/demo"),
        metavar="DIR",
        help="directory for all data and logs, emptied at the start (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=_limit, metavar="N", help="stop N seconds after everything has started")
    _add_verbose(parser)


def _add_config(parser: _Parser, example: str) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help=example)


def _add_verbose(parser: _Parser, effect: str = "print tracebacks of errors") -> None:
    parser.add_argument("--verbose", action="store_true", help=effect)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a name is needed")
    return text


def _offset(text: str) -> LogOffset:
    try:
        return LogOffset.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_COMMANDS: Final = (
    _Command(
        "track",
        "flushtracker.spark.program",
        "spark",
        """\
Track flushes: fragments and flush notifications in, transaction-aligned LSN
acks in a Delta table out.

Starts Spark itself; on a cluster, run jobs/track_flushes.py with spark-submit.
""",
        """0 done, or stopped by SIGTERM or Ctrl-C after the running batch;
1 unexpected error; 2 the configuration or the machine; 3 bad input: a gap, or
an unreadable fragment; 4 the checkpoint; 5 a Delta table; 6 Kafka is
unavailable
""",
        _add_track,
        _check_track,
    ),
    _Command(
        "capture",
        "flushtracker.capture.program",
        "capture",
        """\
Capture WAL: a PostgreSQL slot in, fragments and shape changes out to Kafka,
and the acks back to the slot.

One process reads one slot. After a restart it continues from the slot's
confirmed LSN; everything after that is sent again.
""",
        """0 stopped by SIGTERM or Ctrl-C; 1 unexpected error; 2 the
configuration, the shapes or the topics; 3 the stream cannot be read; 5 the ack
table; 6 Kafka; 7 PostgreSQL, including a slot that is lost or whose history
differs
""",
        _add_capture,
    ),
    _Command(
        "write",
        "flushtracker.writers.program",
        "spark",
        """\
Write shapes: shape changes in, their logs in a Delta table and flush
notifications out.

A notification is sent after its rows are durable. Starts Spark itself; on a
cluster, run jobs/write_shapes.py with spark-submit.
""",
        """0 done, or stopped by SIGTERM or Ctrl-C after the running batch;
1 unexpected error; 2 the configuration or the machine; 3 an unreadable event;
4 the checkpoint; 5 a Delta table, or another writer has the log; 6 Kafka is
unavailable
""",
        _add_write,
    ),
    _Command(
        "topics",
        "flushtracker.capture.topics",
        "",
        """\
Check the Kafka topics of the streams, and create missing ones.

Reports everything that is wrong with the topics named in the configuration.
With --create it creates missing ones with the right settings. It never alters
or deletes an existing topic.
""",
        """0 all topics are correct; 1 unexpected error; 2 a topic is
missing or wrong, the arguments or the configuration; 6 Kafka is unavailable, or
refuses a request
""",
        _add_topics,
    ),
    _Command(
        "replay",
        "flushtracker.replay.program",
        "",
        """\
Replay a recording of PostgreSQL's WAL as the streams of `capture`.

Decodes the recording, routes its changes to the shapes, and writes the
streams fragments, shape_changes and shapes: as directories of files below
DIR, or to the Kafka topics that FILE names.

The streams start with the recording, so they must be empty: no files in the
directories, no records in the topic of fragments. The topics must exist with
the right settings; see `flushtracker topics`.
""",
        """0 done; 1 unexpected error; 2 the arguments, the shapes, the output
or the topics; 3 a bad recording; 6 Kafka is unavailable, or refuses a request
""",
        _add_replay,
    ),
    _Command(
        "report",
        "flushtracker.report.program",
        "report",
        """\
Report how the ack advanced and which shape held it back, as tables and a plot.

Fails unless the last ack is the last commit. Needs no Java.
""",
        """0 the last ack is the last commit; 1 it is not, or an unexpected
error; 2 the arguments or the configuration; 3 an unreadable fragment; 5 no ack
table, or an empty one
""",
        _add_report,
    ),
    _Command(
        "read",
        "flushtracker.read.program",
        "read",
        """\
Read a shape from the shape log: its rows, or its log.

Prints whole transactions only, on stdout; how far they go is printed on stderr.
With --follow it looks for more every second: of the log it prints what is new,
of the rows all, whenever they have changed. Needs no Java.
""",
        """0 done, or stopped by Ctrl-C while following; 1 unexpected error;
2 the arguments, no such shape, or one that was removed or has ended; 3 the log
cannot be folded, or a value does not have its type; 5 a Delta table
""",
        _add_read,
        _check_read,
    ),
    _Command(
        "verify",
        "flushtracker.verify.program",
        "read",
        """\
Verify a shape log against the recording that it was written from.

For each shape, folding its log must give its query over the table, which is
made from the recording's changes alone. Needs no Java.
""",
        """0 every shape is equal; 1 one is not, or an unexpected error;
2 the arguments, the shapes, or one that the log does not have; 3 a bad
recording, or a log that cannot be folded; 5 a Delta table
""",
        _add_verify,
    ),
    _Command(
        "conformance",
        "flushtracker.conformance.program",
        "",
        """\
Test a writer of shapes against the contract of docs/writers.md.

Feeds it random changes, cut and resent in many ways, kills it at random
moments, starts it again, and compares what it has notified with what it has
stored. In both commands, {config} and {data} become the paths of a Kafka
configuration and of an empty directory for the writer's data.

The topics are new ones, on the brokers of FILE. They are left there.
""",
        """0 the writer keeps every rule; 1 it breaks one, or an unexpected
error; 2 the arguments, the configuration or a command that cannot be used; 6
Kafka is unavailable, or refuses a request
""",
        _add_conformance,
    ),
    _Command(
        "demo",
        "flushtracker.demo.program",
        "demo",
        """\
Run everything on this machine, with a live view: a PostgreSQL server, a Kafka
broker, capture, tracker, writers and a workload.

The view shows how far the WAL is written, received, acknowledged and confirmed,
how much of it the slot retains, and which shape holds back the ack. Ctrl-C
stops everything.
""",
        """0 stopped by Ctrl-C, SIGTERM or --seconds; 2 the arguments or the
machine; otherwise the exit code of the part that failed
""",
        _add_demo,
    ),
)

if __name__ == "__main__":
    sys.exit(main())
