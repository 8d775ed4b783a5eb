"""The subcommands: what each does, its exit codes, and the program that it runs."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from flushtracker.cli.arguments import (
    Parser,
    add_add_shape,
    add_capture,
    add_conformance,
    add_demo,
    add_read,
    add_remove_shape,
    add_replay,
    add_report,
    add_snapshot,
    add_status,
    add_topics,
    add_track,
    add_verify,
    add_write,
    check_read,
    check_snapshot,
    check_track,
)
from flushtracker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: ``run(arguments)`` of the module ``program``, which needs ``extra``, returns the exit code."""

    name: str
    program: str
    extra: str
    description: str
    exit_codes: str
    add_arguments: Callable[[Parser], None]
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


COMMANDS: Final = (
    Command(
        "track",
        "flushtracker.jobs.track.program",
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
        add_track,
        check_track,
    ),
    Command(
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
        add_capture,
    ),
    Command(
        "write",
        "flushtracker.jobs.write.program",
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
        add_write,
    ),
    Command(
        "snapshot",
        "flushtracker.jobs.snapshot.program",
        "snapshot",
        """\
Take snapshots: the rows that a table already has into the logs of its shapes.

Takes those of all shapes that lack one, or with an interval as trigger goes on
and looks for new shapes. A snapshot is one commit of the shape log: readers
see none or all of it. Starts Spark itself; on a cluster, run
jobs/snapshot_shapes.py with spark-submit.
""",
        """0 done, or stopped by SIGTERM or Ctrl-C; 1 unexpected error;
2 the configuration, the machine, no such shape, or one that cannot have a
snapshot; 5 a Delta table; 7 PostgreSQL
""",
        add_snapshot,
        check_snapshot,
    ),
    Command(
        "add-shape",
        "flushtracker.operate.shapes.add_program",
        "capture",
        """\
Add shapes to the shapes file that capture watches, and wait until it has them.

The file is changed only if all of it can be read afterwards; comments and
other shapes stay as they are. An id that was ever used is refused.
""",
        """0 added, and capture has taken it; 1 added, but capture has not
taken it in time, or unexpected error; 2 the arguments, the configuration or a
shape: nothing was changed; 6 Kafka: if it says "added" above, only the wait
has failed
""",
        add_add_shape,
    ),
    Command(
        "remove-shape",
        "flushtracker.operate.shapes.remove_program",
        "capture",
        """\
Remove a shape from the shapes file that capture watches, and wait until it is
gone.

This is final: the id is never used again. Nothing more is sent to the shape's
writer, and what it has not flushed holds back the slot no longer. Comments and
other shapes stay as they are.
""",
        """0 removed, and capture has taken it; 1 removed, but capture has
not taken it in time; or nothing was changed, because you said no; or unexpected
error; 2 the arguments, the configuration or the shape: nothing was changed; 6
Kafka: if it says "removed" above, only the wait has failed
""",
        add_remove_shape,
    ),
    Command(
        "topics",
        "flushtracker.operate.topics",
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
        add_topics,
    ),
    Command(
        "replay",
        "flushtracker.recordings.replay_program",
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
        add_replay,
    ),
    Command(
        "report",
        "flushtracker.operate.report.program",
        "report",
        """\
Report how the ack advanced and which shape held it back, as tables and a plot.

Fails unless the last ack is the last commit. Needs no Java.
""",
        """0 the last ack is the last commit; 1 it is not, or an unexpected
error; 2 the arguments or the configuration; 3 an unreadable fragment; 5 no ack
table, or an empty one
""",
        add_report,
    ),
    Command(
        "status",
        "flushtracker.operate.status.program",
        "capture",
        """\
Show what holds the slot now: which shapes, since when, how much WAL, and what
could be acknowledged without each.

Asks the tracking job over HTTP, PostgreSQL, and the ack table, at once. Each
has a few seconds; where one is silent, the output says so and dates what it
has from the others. Changes nothing. Needs no Java.

SIZE is a number with a unit: 5GB, 512MB (powers of 1000), 5GiB (of 1024); TIME
is one, too: 90s, 10m, 6h. docs/operating.md describes all that is printed.
""",
        """0 all right, or --watch was stopped by Ctrl-C; 1 a limit is
exceeded, the slot is lost, about to be (unreserved) or inactive, or an
unexpected error; 2 the arguments or the configuration; 5 the ack table cannot
be read; 7 PostgreSQL is silent, or has no such slot; 8 the job is silent, or
has not seen the source; of several the first of 1, 7, 8, 5
""",
        add_status,
    ),
    Command(
        "read",
        "flushtracker.operate.read",
        "read",
        """\
Read a shape from the shape log: its rows, or its log.

Prints whole transactions only, on stdout; how far they go is printed on stderr.
With --follow it looks for more every second: of the log it prints what is new,
of the rows all, whenever they have changed. The log of a shape with a snapshot
begins with that; --after 0/0+inf prints the changes alone. Needs no Java.
""",
        """0 done, or stopped by Ctrl-C while following; 1 unexpected error;
2 the arguments, no such shape, one that was removed or has ended, or one whose
snapshot has not been taken yet, or was taken again with changes that --follow
has not printed; 3 the log cannot be folded, or a value does not have its type;
5 a Delta table
""",
        add_read,
        check_read,
    ),
    Command(
        "verify",
        "flushtracker.recordings.verify_program",
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
        add_verify,
    ),
    Command(
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
        add_conformance,
    ),
    Command(
        "demo",
        "flushtracker.demo.program",
        "demo",
        """\
Run everything on this machine, with a live view: a PostgreSQL server, a Kafka
broker, capture, tracker, writers and a workload.

The view is the output of `flushtracker status`: how much WAL the slot retains,
the ack, and the shapes that hold it. Ctrl-C stops everything, and then compares
each shape's log with its table.
""",
        """0 stopped by Ctrl-C, SIGTERM or --seconds; 2 the arguments or the
machine; otherwise the exit code of the part that failed
""",
        add_demo,
    ),
)
