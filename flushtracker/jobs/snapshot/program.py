"""``flushtracker snapshot``: the snapshots' job as a program, from its arguments to its exit code."""

import argparse

from flushtracker.config.snapshot_config import SnapshotConfig, load_snapshot_config
from flushtracker.jobs.snapshot.loop import SnapshotLoop
from flushtracker.monitoring.status_server import serving
from flushtracker.spark.job_run import check_start, run_job


def run(arguments: argparse.Namespace) -> int:
    """Take the snapshots that are missing, or take them at an interval until SIGTERM or Ctrl-C."""
    config = load_snapshot_config(arguments.config)
    return run_job(
        "snapshot",
        config.postgres.connections,
        lambda spark, stop: _take(SnapshotLoop(spark, config, stop, arguments.shapes, again=arguments.again), config),
        lambda: check_start(None, {"sink.log": config.sink.log}),
        verbose=arguments.verbose,
        log_format=arguments.log_format,
    )


def _take(loop: SnapshotLoop, config: SnapshotConfig) -> None:
    with serving(config.status, loop.live.read):
        loop.run()
