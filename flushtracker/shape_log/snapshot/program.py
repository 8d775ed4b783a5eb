"""``flushtracker snapshot``: the snapshots' job as a program, from its arguments to its exit code."""

import argparse
from contextlib import closing
from typing import Final

from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.streams import SHAPES
from flushtracker.events.topic_rules import SNAPSHOT_ROLES
from flushtracker.process.program import StopFlag, log_to_stderr, set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shape_log.snapshot.publish_config import PublishConfig, load_publish_config
from flushtracker.status.http.status_server import serving

STOP_TIMEOUT_S: Final = 60.0


def run(arguments: argparse.Namespace) -> int:
    """Take the missing snapshots, once or at an interval until SIGTERM or Ctrl-C."""
    publish = load_publish_config(arguments.config)
    return _write_to_log(arguments) if publish is None else _publish(arguments, publish)


def _write_to_log(arguments: argparse.Namespace) -> int:
    # Spark is imported where it is used: publishing works without it.
    from flushtracker.shape_log.snapshot.delta_snapshots import log_snapshots  # noqa: PLC0415
    from flushtracker.spark.job_run import Job, JobSession, check_start, run_job  # noqa: PLC0415

    config = load_snapshot_config(arguments.config)
    job = Job(
        JobSession(config.postgres.connections, config.spark),
        lambda: check_start(None, {"storage (log)": config.sink.log}, config.sink.storage_options),
        lambda spark, stop: _take(
            log_snapshots(spark, config, stop, arguments.shapes, again=arguments.again), config.status
        ),
    )
    return run_job("snapshot", job, verbose=arguments.verbose, log_format=arguments.log_format)


def _take(loop: SnapshotLoop, status: StatusConfig | None) -> None:
    with serving(status, loop.live.read):
        loop.run()


def _publish(arguments: argparse.Namespace, config: PublishConfig) -> int:
    # psycopg and the Kafka client are imported where they are used, for the same reason.
    from flushtracker.kafka.topic_admin import require_topics  # noqa: PLC0415
    from flushtracker.shape_log.snapshot.kafka_snapshots import KafkaSnapshots  # noqa: PLC0415

    log_to_stderr(log_format=arguments.log_format)
    stop = StopFlag()
    set_on_signals(stop)
    exit_if_hung("flushtracker snapshot", stop.is_set, STOP_TIMEOUT_S, arguments.log_format)
    require_topics(config.kafka, (SHAPES, *SNAPSHOT_ROLES))
    with closing(KafkaSnapshots(config)) as store:
        _take(SnapshotLoop(store, config, stop, arguments.shapes, again=arguments.again), config.status)
    return 0
