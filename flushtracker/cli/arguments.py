"""The arguments of each subcommand."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

from flushtracker.config.one_file import CONFIG_VARIABLE, DEFAULT_CONFIG
from flushtracker.config.places import parse_brokers, parse_storage
from flushtracker.config.units import parse_bytes, parse_duration_ms
from flushtracker.errors import PositionError
from flushtracker.process.log_format import LOG_FORMATS
from flushtracker.shape_log.position import Position
from flushtracker.wal.log_offset import LogOffset

Parser: TypeAlias = argparse.ArgumentParser
_Value = TypeVar("_Value")


def add_init(parser: Parser) -> None:
    add = parser.add_argument
    add("--postgres", required=True, metavar="URL", help="the database, as libpq's URI or options")
    add(
        "--kafka",
        type=_brokers,
        default="localhost:9092",
        metavar="HOST:PORT",
        help="the brokers (default: %(default)s)",
    )
    add(
        "--storage",
        type=_storage,
        default="data",
        metavar="PLACE",
        help="a folder, or a URI such as s3://bucket/orders (default: %(default)s)",
    )
    add("--tables", metavar="TABLES", help="all that are not refused, as all, or names such as public.a,public.b")
    add("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")
    add("--out", type=Path, default=Path(), metavar="DIR", help="where the files are written (default: here)")
    _add_verbose(parser)


def add_track(parser: Parser) -> None:
    _add_config(parser)
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
        help="with --recover: skip everything from a source for which capture will never run again, and drop the state "
        "of it; its acks stay; may be repeated. A source that a failover has replaced does not need it",
    )
    _add_verbose(parser, "print Spark's own log, and tracebacks of errors")


def check_track(arguments: argparse.Namespace) -> str | None:
    return "--abandon is only valid with --recover" if arguments.abandon and not arguments.recover else None


def add_write(parser: Parser) -> None:
    _add_config(parser)
    _add_verbose(parser, "print Spark's own log, and tracebacks of errors")


def add_jobs(parser: Parser) -> None:
    _add_config(parser)
    _add_verbose(parser, "print Spark's own log, and tracebacks of errors")


def add_capture(parser: Parser) -> None:
    _add_config(parser)
    parser.add_argument("--create", action="store_true", help="create missing topics, publication and slot")
    parser.add_argument(
        "--new-epoch", action="store_true", help="continue as a new source, after the server was restored"
    )
    parser.add_argument(
        "--upgraded-from",
        type=_name,
        metavar="ID",
        help="continue on a server that was made from the one with this system identifier, by pg_upgrade or a dump: if "
        "it is not proven that nothing is missing, as a new source, unless this was done before",
    )
    parser.add_argument(
        "--before-upgrade",
        action="store_true",
        help="stop once everything is confirmed, and seal the slot, so that its source continues after pg_upgrade",
    )
    parser.add_argument("--wait", action="store_true", help="while another capture reads the slot, wait until it ends")
    _add_verbose(parser, "log in more detail, and print tracebacks of errors")


def add_remove_shape(parser: Parser) -> None:
    parser.add_argument("shape", type=_name, metavar="SHAPE", help="the shape's id")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")
    _add_edit(parser)


def add_resync(parser: Parser) -> None:
    parser.add_argument("shapes", type=_name, nargs="+", metavar="SHAPE", help="the ids of shapes")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")
    _add_edit(parser)


def add_add_shape(parser: Parser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML: a shape, alone or as a list 'shapes' of one; - for stdin"
    )
    parser.add_argument("--offline", action="store_true", help="do not check the shape with the server's catalog")
    _add_edit(parser)


def add_check(parser: Parser) -> None:
    add = parser.add_argument
    add("--shapes", type=Path, required=True, metavar="PATH", help="such as conf/shapes.yaml, or a folder of files")
    add(
        "--connection",
        metavar="OPTIONS",
        help="libpq's options or URI of a server with the tables: check the shapes with its catalog, too",
    )
    add("--publication", type=_name, metavar="NAME", help="with --connection: also check that it omits nothing")
    _add_verbose(parser)


def check_check(arguments: argparse.Namespace) -> str | None:
    is_alone = arguments.publication is not None and arguments.connection is None
    return "--publication is only valid with --connection" if is_alone else None


def _add_edit(parser: Parser) -> None:
    _add_config(parser)
    wait = parser.add_mutually_exclusive_group()
    wait.add_argument(
        "--timeout", type=_limit, default=30, metavar="S", help="seconds to wait for capture (default: %(default)s)"
    )
    wait.add_argument("--no-wait", action="store_true", help="do not wait for capture, but read its registry")
    _add_verbose(parser)


def add_snapshot(parser: Parser) -> None:
    _add_config(parser)
    parser.add_argument("shapes", nargs="*", type=_name, metavar="SHAPE", help="only these; default: all without one")
    parser.add_argument("--again", action="store_true", help="replace the snapshots that these shapes have")
    _add_verbose(parser, "print Spark's own log, and tracebacks of errors")


def check_snapshot(arguments: argparse.Namespace) -> str | None:
    return "--again needs the ids of the shapes" if arguments.again and not arguments.shapes else None


def add_sink(parser: Parser) -> None:
    _add_config(parser)
    _add_verbose(parser)


def add_up(parser: Parser) -> None:
    _add_config(parser)
    add = parser.add_argument
    add("--with-kafka", action="store_true", help="also run the broker of the configuration, on this machine")
    add("--with-postgres", action="store_true", help="also run its PostgreSQL server, on this machine")
    add(
        "--view",
        type=Path,
        metavar="FILE",
        help="show what holds the slot once everything runs, as status --watch does; all output goes to FILE",
    )
    _add_verbose(parser, "of all programs: log in more detail, and print tracebacks of errors")


def add_config(parser: Parser) -> None:
    _add_config(parser)
    parser.add_argument("--schema", action="store_true", help="print a JSON Schema of this file for editors, and stop")
    _add_verbose(parser)


def add_topics(parser: Parser) -> None:
    _add_config(parser)
    parser.add_argument("--create", action="store_true", help="create missing topics")
    _add_verbose(parser)


def add_replay(parser: Parser) -> None:
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
    output.add_argument(
        "--kafka", type=Path, metavar="FILE", help="such as conf/flushtracker.yaml: publish to its topics"
    )
    add("--source", type=_name, default="recording/1/shapes", metavar="NAME", help="default: %(default)s")
    add("--max-batch-size", type=_limit, default=100, metavar="N", help="changes per fragment (default: %(default)s)")
    add("--max-tx-size", type=_limit, metavar="BYTES", help="per transaction; more is an error (default: no limit)")
    add(
        "--fragments-per-file",
        type=_limit,
        default=20,
        metavar="N",
        help="at least this many fragments per file, or confirmed together by Kafka (default: %(default)s)",
    )
    add("--rate", type=_limit, metavar="N", help="approximate fragments per second (default: no limit)")
    _add_verbose(parser)


def add_dist(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    _add_verbose(parser)


def add_report(parser: Parser) -> None:
    add = parser.add_argument
    _add_config(parser)
    add("--source", metavar="NAME", help="the source to report on, if the table has several")
    add("--plot", type=Path, default=Path("data/report.png"), metavar="FILE", help="default: %(default)s")
    _add_verbose(parser)


def add_status(parser: Parser) -> None:
    add = parser.add_argument
    _add_config(parser)
    add(
        "--job",
        metavar="URL",
        help="the job's status, such as http://127.0.0.1:9464; default: that of the configuration",
    )
    add("--json", action="store_true", help="print one JSON object, on one line")
    add(
        "--watch",
        type=_limit,
        nargs="?",
        const=2,
        metavar="SECONDS",
        help="repeat every SECONDS (default: %(const)s) until Ctrl-C",
    )
    add(
        "--safe-to-upgrade",
        action="store_true",
        help="say whether pg_upgrade would keep the slot now, and what is to be done before; exit with 1 if not yet",
    )
    add("--max-retained", type=_size, metavar="SIZE", help="exit with 1 if the slot retains more WAL than this")
    add(
        "--max-age",
        type=_duration,
        metavar="TIME",
        help="exit with 1 if the ack has not moved for longer than this, with 8 if a batch has run for longer",
    )
    _add_verbose(parser)


def add_read(parser: Parser) -> None:
    add = parser.add_argument
    add("shape", type=_name, nargs="+", metavar="SHAPE", help="the shape's id; several are read as of one moment")
    _add_log(parser)
    add("--source", type=_name, metavar="NAME", help="the shape's source, if it has several")
    add("--log-rows", action="store_true", help="print the shape's log instead of its rows")
    add("--at", type=_offset, metavar="LSN+OP", help="print the rows as of this offset, such as 16/B374D848+inf")
    add("--after", type=_position, metavar="POSITION", help="with --log-rows: only what follows this printed position")
    add("--changes", action="store_true", help="with --log-rows: begin with the changes, without the snapshot's rows")
    add("--follow", action="store_true", help="keep printing what is written, until Ctrl-C")
    add("--typed", action="store_true", help="cast the rows' values to the types of the table's columns")
    add("--format", choices=("table", "jsonl", "csv"), default="table", help="default: %(default)s")
    add("--even-if-ended", action="store_true", help="read a shape that was removed or has ended, if it has a log")
    _add_verbose(parser)


def add_shapes(parser: Parser) -> None:
    add = parser.add_argument
    _add_log(parser)
    add("--all", action="store_true", help="also shapes that were removed")
    add("--format", choices=("table", "jsonl"), default="table", help="default: %(default)s")
    _add_verbose(parser)


def _add_log(parser: Parser) -> None:
    add = parser.add_argument
    _add_config(parser)
    add("--log", metavar="PATH", help="the shape log, instead of that of the configuration")
    add(
        "--shapes",
        metavar="PATH",
        help="the registry table (default: PATH of --log + _shapes)",
    )


def check_read(arguments: argparse.Namespace) -> str | None:
    if len(arguments.shape) > 1:
        single = ("log_rows", "at", "after", "changes", "follow", "even_if_ended")
        if arguments.format == "csv" or any(getattr(arguments, name) for name in single):
            return "several shapes are only printed as rows, as a table or with --format jsonl, and as of the last cut"
    if arguments.at is not None and (arguments.follow or arguments.log_rows):
        return "--at is only valid without --follow and --log-rows"
    if arguments.after is not None and (arguments.changes or not arguments.log_rows):
        return "--after is only valid with --log-rows and without --changes"
    if arguments.changes and not arguments.log_rows:
        return "--changes is only valid with --log-rows"
    return "--typed is only valid without --log-rows" if arguments.typed and arguments.log_rows else None


def add_serve(parser: Parser) -> None:
    _add_config(parser)
    _add_verbose(parser, "log in more detail, and print tracebacks of errors")


def add_verify(parser: Parser) -> None:
    add = parser.add_argument
    add("--log", required=True, metavar="PATH", help="the shape log: the folder log below storage")
    add("--recording", type=Path, required=True, metavar="DIR", help="the recording that was replayed")
    add("--shapes", type=Path, required=True, metavar="FILE", help="such as conf/shapes.yaml")
    _add_verbose(parser)


def add_conformance(parser: Parser) -> None:
    add = parser.add_argument
    add("--writer", required=True, metavar="COMMAND", help="runs the writer until it is killed")
    add(
        "--dump", required=True, metavar="COMMAND", help="prints what it has stored, as JSON lines; see docs/writers.md"
    )
    add("--name", default="conformance", help="the writer's name, as shapes files have it (default: %(default)s)")
    add("--read", metavar="COMMAND", help="prints what its readers see, as JSON lines too (default: not tested)")
    add(
        "--rows",
        metavar="COMMAND",
        help="prints the rows of each shape with a snapshot, a JSON object for each (default: no shape has one)",
    )
    add(
        "--power-loss",
        action="store_true",
        help="two of three kills are power failures, which take what the writer has not synced in {data}; on Linux",
    )
    add("--kafka", type=Path, metavar="FILE", help="such as conf/flushtracker.yaml (default: a broker on this machine)")
    add("--kills", type=_limit, default=100, metavar="N", help="kills at aimed moments, in all (default: %(default)s)")
    add(
        "--seeds",
        type=_limit,
        default=4,
        metavar="N",
        help="trials, among which the kills are divided (default: %(default)s)",
    )
    add("--timeout", type=_limit, default=60, metavar="S", help="seconds to notify a flush (default: %(default)s)")
    add(
        "--seed",
        type=_limit,
        default=1,
        metavar="N",
        help="of the first trial's changes and times (default: %(default)s)",
    )
    add(
        "--data",
        type=Path,
        default=Path("data/conformance"),
        metavar="DIR",
        help="directory in which each run makes one for the writer's log and data (default: %(default)s)",
    )
    _add_verbose(parser)


def add_conformance_loop(parser: Parser) -> None:
    _add_config(parser)
    add = parser.add_argument
    add("--kills", type=_limit, default=50, metavar="N", help="kills at random moments (default: %(default)s)")
    add("--timeout", type=_limit, default=300, metavar="S", help="seconds without progress (default: %(default)s)")
    add("--seed", type=_limit, metavar="N", help="of what is written and killed, not of the moments (default: random)")
    add(
        "--data",
        type=Path,
        default=Path("data/conformance"),
        metavar="DIR",
        help="directory in which each run makes one for configurations and logs (default: %(default)s)",
    )
    _add_verbose(parser)


def add_demo(parser: Parser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data/demo"),
        metavar="DIR",
        help="directory for all data and logs, emptied at the start (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=_limit, metavar="N", help="stop N seconds after everything has started")
    _add_verbose(parser)


def _add_config(parser: Parser) -> None:
    """The default is looked for when the command runs."""
    where = f"(default: ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG})"
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"the configuration of all programs {where}")


def _add_verbose(parser: Parser, effect: str = "print tracebacks of errors") -> None:
    parser.add_argument("--verbose", action="store_true", help=effect)
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="format of stderr: lines of text, or one JSON object per line (default: %(default)s)",
    )


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _size(text: str) -> int:
    return _argument(parse_bytes, text)


def _brokers(text: str) -> str:
    return _argument(parse_brokers, text)


def _storage(text: str) -> str:
    return _argument(parse_storage, text)


def _duration(text: str) -> int:
    return _argument(parse_duration_ms, text)


def _argument(parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _offset(text: str) -> LogOffset:
    try:
        return LogOffset.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except PositionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
