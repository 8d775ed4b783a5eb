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
    add_check,
    add_config,
    add_conformance,
    add_conformance_loop,
    add_demo,
    add_dist,
    add_init,
    add_jobs,
    add_read,
    add_remove_shape,
    add_replay,
    add_report,
    add_resync,
    add_serve,
    add_shapes,
    add_sink,
    add_snapshot,
    add_status,
    add_topics,
    add_track,
    add_up,
    add_verify,
    add_write,
    check_check,
    check_read,
    check_snapshot,
    check_track,
)
from flushtracker.errors import ConfigError
from flushtracker.process.early_interrupt import end_at_interrupt, raise_at_interrupt


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. ``run(arguments)`` of the module ``program``, which needs ``extra``, returns the exit code."""

    name: str
    program: str
    extra: str
    description: str
    exit_codes: str
    add_arguments: Callable[[Parser], None]
    check: Callable[[argparse.Namespace], str | None] = lambda _: None
    """Returns the error in the combination of arguments, if any."""

    @property
    def summary(self) -> str:
        """The first paragraph of the description, for the list of subcommands."""
        return " ".join(self.description.partition("\n\n")[0].split())

    def run(self, arguments: argparse.Namespace) -> int:
        """Import the program and run it; raises ``ConfigError`` if one of its packages is missing."""
        end_at_interrupt()
        try:
            program = import_module(self.program)
        except ModuleNotFoundError as error:
            package = (error.name or str(error)).partition(".")[0]
            if package == "flushtracker":
                raise
            raise ConfigError(f"{package} is not installed; run: pip install 'flushtracker[{self.extra}]'") from error
        finally:
            raise_at_interrupt()
        exit_code: int = program.run(arguments)
        return exit_code


COMMANDS: Final = (
    Command(
        "init",
        "flushtracker.operate.init.program",
        "capture",
        """\
Look at a database, say what it lacks, and write a configuration with a shape
for each chosen table.

Prints the tables, why some are refused, and the statements that change that and
make the server ready; it changes nothing on the server itself, and overwrites
no file. Without a terminal it needs --tables and --yes. In place of a password
in the URL it writes the variable PGPASSWORD.

    flushtracker init --postgres postgresql://capture@db.internal/app \\
      --kafka broker:9092 --storage s3://bucket/app --tables all --yes
""",
        """0 written; 1 nothing was written, because no table was chosen or
can have a shape, or you said no; or unexpected error; 2 the arguments, a table
that is refused, or a file that is there already: nothing was written; 7
PostgreSQL: nothing was written
""",
        add_init,
    ),
    Command(
        "up",
        "flushtracker.operate.up.program",
        "snapshot",
        """\
Run all programs of the configuration on this machine, until Ctrl-C.

Starts capture, with --create, then the jobs, and the server once there are
tables. Once a first batch was written and acknowledged, it says that everything
runs. A program that is killed is started again; so is one that ends because of
Kafka, PostgreSQL or the storage, once everything has run. Any other exit stops
all. The output of all programs is on stderr, with the name of each, or with
--view at the end of a file, while the terminal shows what holds the slot.

With --with-kafka and --with-postgres it starts these before, where the
configuration says that they are, which must be localhost, and stops them last.
Their data stays in the folder local beside the configuration. They are for
trying: every user of this machine can connect as superuser.
""",
        """0 stopped by SIGTERM or Ctrl-C; 1 unexpected error; 2 the
configuration, an address that is taken, or another one runs with it; otherwise
the exit code of the program that has ended
""",
        add_up,
    ),
    Command(
        "config",
        "flushtracker.operate.config_report",
        "capture",
        """\
Check the configuration of all programs, and print what is in force, and from
where: a line of the file, a default, or the key that it is derived from.

Secrets are not shown. It connects to nothing.
""",
        """0 every program accepts it; 1 unexpected error; 2 the arguments or
the configuration
""",
        add_config,
    ),
    Command(
        "track",
        "flushtracker.tracking.job.program",
        "spark",
        """\
Track flushes: read fragments and flush notifications, and write
transaction-aligned LSN acks to a Delta table.

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
Capture WAL: publish a PostgreSQL slot as fragments and shape changes to Kafka,
and confirm the acks to the slot.

One process reads one slot. After a restart it continues from the slot's
confirmed LSN; everything after that is sent again. A second process on the slot
says which one reads it, and ends, or with --wait takes over when that ends. The
runbook says how it continues after a major upgrade of the server.
""",
        """0 stopped by SIGTERM or Ctrl-C, or done with --before-upgrade; 1
unexpected error; 2 the configuration, the shapes or the topics; 3 the stream
cannot be read; 4 another capture has claimed the source; 5 the ack table; 6
Kafka; 7 PostgreSQL, including a slot that is lost or whose history differs; 9
another capture reads the slot
""",
        add_capture,
    ),
    Command(
        "write",
        "flushtracker.shape_log.write.program",
        "spark",
        """\
Write shapes: read shape changes, write their logs to a Delta table, and send
flush notifications.

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
        "jobs",
        "flushtracker.operate.jobs.program",
        "spark",
        """\
Run write and track as two queries of one Spark application, which needs one JVM
instead of two.

Both take their settings of Spark from the section spark alone. If one of them
ends with an error, so does the other. On SIGTERM or Ctrl-C the writers stop
first, so that what they have written is still acknowledged.
""",
        """0 done, or stopped by SIGTERM or Ctrl-C after the running batches;
otherwise those of write and track
""",
        add_jobs,
    ),
    Command(
        "snapshot",
        "flushtracker.shape_log.snapshot.program",
        "snapshot",
        """\
Take snapshots: write the rows that tables already have to their shapes' logs,
or publish them for writers of other storages.

Takes the missing snapshots of all shapes; with an interval as trigger, keeps
looking for new shapes. A snapshot is one commit of the shape log: readers see
none or all of it. Starts Spark itself; on a cluster, run
jobs/snapshot_shapes.py with spark-submit. With snapshot.into: kafka it
publishes to Kafka instead, without Spark; see docs/writers.md.
""",
        """0 done, or stopped by SIGTERM or Ctrl-C; 1 unexpected error;
2 the configuration, the machine, an unknown shape, or one that cannot have a
snapshot; 5 a Delta table; 6 Kafka; 7 PostgreSQL
""",
        add_snapshot,
        check_snapshot,
    ),
    Command(
        "sink",
        "flushtracker.sinks.job.program",
        "status,writer",
        """\
Write shapes to Kafka topics in Debezium's format, and notify what the sinks
that read them have committed.

Any sink is then a writer: Kafka Connect, Flink, a consumer of one's own. The
slot waits for the consumer groups that the configuration names for each shape.
Creates missing topics. One process runs for each configuration; a second one
fences the first. docs/kafka_sinks.md says what a sink must do.
""",
        """0 stopped by SIGTERM or Ctrl-C; 1 unexpected error; 2 the
configuration, a topic or a shape; 3 an unreadable event; 6 Kafka is
unavailable or refuses a request, or a topic was replaced
""",
        add_sink,
    ),
    Command(
        "add-shape",
        "flushtracker.operate.shapes.add_program",
        "capture",
        """\
Add a shape to capture's folder of shapes, as a file of its own, and wait until
capture has registered it.

The file is copied as it is, and only if the shape is right, also by the
server's catalog. Without a server, --offline leaves that to capture. An id that
was ever used is refused.
""",
        """0 added, and capture has registered it; 1 added, but capture has not
registered it in time, or unexpected error; 2 the arguments, the configuration
or a shape: nothing was changed; 6 Kafka: if "added" is printed above, only the
wait has failed; 7 PostgreSQL: nothing was changed
""",
        add_add_shape,
    ),
    Command(
        "remove-shape",
        "flushtracker.operate.shapes.remove_program",
        "capture",
        """\
Remove a shape from capture's shapes by deleting its file, and wait until
capture has removed it.

This is final: the id is never used again. The shape's writer is sent nothing
more, and what it has not flushed no longer holds back the slot. A shape without
a file of its own is left to an editor.
""",
        """0 removed from the shapes and by capture; 1 removed from the shapes,
but not by capture in time; or nothing was changed, because you said no; or
unexpected error; 2 the arguments, the configuration or the shape: nothing was
changed; 6 Kafka: if "removed" is printed above, only the wait has failed
""",
        add_remove_shape,
    ),
    Command(
        "check",
        "flushtracker.operate.shapes.check_program",
        "capture",
        """\
Check a shapes file or a folder of them, and print everything that is wrong, one
problem on each line, with file and line.

With --connection, also what a server's catalog does not allow: tables, columns,
keys, types, replica identities. The server may be any that has the tables, such
as one for tests; without --publication none is needed. Changes nothing.
""",
        """0 no problem; 1 the file has problems, or an unexpected error; 2
the arguments; 7 PostgreSQL
""",
        add_check,
        check_check,
    ),
    Command(
        "resync",
        "flushtracker.operate.shapes.resync_program",
        "capture",
        """\
Begin shapes again, each under its id, and wait until capture has registered
that.

For a shape that has ended, or that is doubted: it gets a new incarnation, which
begins with a new snapshot, in the same log. Nothing of the one before counts
any more; followers of the log continue with what differs. A live shape ends
first. Its definition may have been changed.
""",
        """0 in the file, and capture has begun them again; 1 in the file, but
capture has not begun them in time; or nothing was changed, because you said no;
or unexpected error; 2 the arguments, the configuration or a shape: nothing was
changed; 6 Kafka: if "has incarnation" is printed above, only the wait has
failed
""",
        add_resync,
    ),
    Command(
        "topics",
        "flushtracker.operate.topics",
        "writer",
        """\
Check the Kafka topics of the streams, and create missing ones.

Reports every fault of the topics named in the configuration. With --create it
creates missing ones with the right settings. It never alters or deletes an
existing topic.
""",
        """0 all topics are correct; 1 unexpected error; 2 a topic is
missing or wrong, the arguments or the configuration; 6 Kafka is unavailable, or
refuses a request
""",
        add_topics,
    ),
    Command(
        "replay",
        "flushtracker.trials.recordings.replay_program",
        "writer",
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

Queries the tracking job over HTTP, PostgreSQL and the ack table in parallel,
each for a few seconds. If one does not answer, the output says so and shows the
time of the others' answers. Changes nothing. Needs no Java.

SIZE is a number with a unit: 5GB, 512MB (powers of 1000), 5GiB (of 1024). So is
TIME: 90s, 10m, 6h. docs/operating.md describes the output.
""",
        """0 no problem, or --watch was stopped by Ctrl-C; 1 a limit is
exceeded, the slot is lost, about to be (unreserved) or inactive, a shape has
ended, is refused, or gets no changes or no snapshot, or with --safe-to-upgrade
not safe, or an unexpected error; 2 the arguments or the configuration; 5 the
ack table cannot be read; 7 PostgreSQL does not answer, or has no such slot; 8
the job does not answer, or has not seen the source; of several the first of 1,
7, 8, 5
""",
        add_status,
    ),
    Command(
        "dist",
        "flushtracker.spark.dist",
        "spark",
        """\
Write what spark-submit needs on a cluster to a new folder: the package as a
zip, Spark's extra jars, and the scripts of the jobs.

Fetches the jars for the installed pyspark if they are missing. The folder gets
flushtracker.zip for --py-files, jars for --jars, jobs/track_flushes.py,
jobs/write_shapes.py and jobs/snapshot_shapes.py, and a log4j2.properties for
executors.

    flushtracker dist dist
""",
        """0 written; 1 unexpected error; 2 the arguments, a folder that is
not empty or cannot be written, or jars that cannot be fetched
""",
        add_dist,
    ),
    Command(
        "shapes",
        "flushtracker.operate.list_program",
        "read",
        """\
List the shapes of the shape log: their state, rows, last change and writer.

Of each live shape, the rows that flushtracker read would print, the LSN and the
time of its last transaction in the log, and how much later that was written
(lag). Below, why some cannot be read. Counting reads every row. What the slot
still holds for a shape, flushtracker status says. Needs no Java.
""",
        """0 done; 1 unexpected error; 2 the arguments or the configuration,
or no registry table; 3 the log cannot be folded; 5 a Delta table
""",
        add_shapes,
    ),
    Command(
        "read",
        "flushtracker.operate.read",
        "read",
        """\
Read a shape from the shape log: its rows, or its log. Or the rows of several.

Prints whole transactions only, on stdout, and on stderr their last offset and
the position from which --after continues. With --follow it reads again every
second: it prints what is new in the log, or all rows whenever they have
changed. The log of a shape with a snapshot begins with the snapshot; --changes
prints only the changes. If another snapshot has replaced the one that was read,
it prints the difference first, and without --follow nothing else, as one
transaction. Several shapes are printed as of one moment, the last up to which
the log has all shapes of their source: this needs flush: batch in
flushtracker write. Needs no Java.
""",
        """0 done, or stopped by Ctrl-C while following; 1 unexpected error;
2 the arguments, an unknown shape, one that was removed or has ended, or one
whose snapshot has not been taken yet; or several shapes cannot be read as of
one moment yet; or changes after the position are
missing, because the log is folded or deleted; 3 the log
cannot be folded, or a value does not have its type; 5 a Delta table
""",
        add_read,
        check_read,
    ),
    Command(
        "serve",
        "flushtracker.serve.program",
        "serve",
        """\
Serve the shape log over HTTP, to clients of Electric's shape protocol.

A client gets the rows of a shape, and then its changes as they are written. Any
number of servers may run beside each other: they only read the tables, and keep
nothing that another does not have. docs/http.md describes the requests. Needs
no Java.
""",
        """0 stopped by SIGTERM or Ctrl-C; 1 unexpected error; 2 the
configuration, or nothing can listen there; 5 a Delta table, at the start: later
the server waits for it, and answers 503
""",
        add_serve,
    ),
    Command(
        "verify",
        "flushtracker.trials.recordings.verify_program",
        "read",
        """\
Verify a shape log against the recording from which it was written.

For each shape, folding its log must give the same rows as its query over the
table, which is built from the recording alone. Needs no Java.
""",
        """0 every shape is equal; 1 one is not, or an unexpected error;
2 the arguments, the shapes, or a shape that is not in the log; 3 a bad
recording, or a log that cannot be folded; 5 a Delta table
""",
        add_verify,
    ),
    Command(
        "conformance",
        "flushtracker.trials.conformance.program",
        "writer",
        """\
Test a writer of shapes against the contract of docs/writers.md.

Sends it random changes, cut and resent in many ways, kills it at random times,
restarts it, and compares what it has notified with what it has stored. With
--rows it also sends snapshots, and checks the rows that readers see. In each
command, {config} and {data} are replaced by the paths of a Kafka configuration
and of an empty directory for the writer's data, {writer} by the writer's name.

Creates new topics on the brokers of FILE, and does not delete them.
""",
        """0 the writer keeps every rule; 1 it breaks one, or an unexpected
error; 2 the arguments, the configuration or a command that cannot be used; 6
Kafka is unavailable, or refuses a request
""",
        add_conformance,
    ),
    Command(
        "conformance-loop",
        "flushtracker.trials.loop_trial.program",
        "snapshot",
        """\
Test the whole loop under kills, on your own server, brokers and storage.

Runs capture, track, write and two serve on tables of its own, kills them
(SIGKILL) at random moments while transactions run, starts them again, and
compares, from outside, what is confirmed with what readers of the shapes see,
in the log and over HTTP: nothing is confirmed early, nothing is lost or read in
parts, and in the end everything is confirmed. docs/deploying.md says what it
cannot see.

What it creates has a new name, flushtracker_trial_…: a schema, a publication, a
slot and topics, which it removes at the end, and two directories, which stay.
It touches nothing else.
""",
        """0 every rule holds; 1 one is broken, it was stopped, or an
unexpected error; 2 the arguments or the configuration; otherwise the exit code
of the program that ended by itself
""",
        add_conformance_loop,
    ),
    Command(
        "demo",
        "flushtracker.trials.demo.program",
        "demo",
        """\
Run everything on this machine, with a live view: what `flushtracker up` runs,
with a PostgreSQL server, a Kafka broker and a workload.

The view is the output of `flushtracker status`: how much WAL the slot retains,
the ack, and the shapes that hold it. The output of all programs is in the file
programs.log of its directory. Ctrl-C ends the workload, compares each shape's
log with its table, and stops everything.
""",
        """0 stopped by Ctrl-C, SIGTERM or --seconds; 1 a log differs from its
table, or an unexpected error; 2 the arguments or the machine; otherwise the
exit code of the program that has ended
""",
        add_demo,
    ),
)
