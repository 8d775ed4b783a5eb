"""``flushtracker track``: the tracking job as a program, from its arguments to its exit code."""

import argparse
from pathlib import Path

from flushtracker.config.job_config import load_config
from flushtracker.spark.job_run import Job, JobSession, check_start, run_job
from flushtracker.tracking.job.query import Recovery, track_flushes


def run(arguments: argparse.Namespace) -> int:
    """Track until everything is read, or until SIGTERM or Ctrl-C."""
    recovery = Recovery(tuple(arguments.abandon)) if arguments.recover else None
    job = tracking_job(arguments.config, recovery)
    return run_job("track", job, verbose=arguments.verbose, log_format=arguments.log_format)


def tracking_job(path: Path, recovery: Recovery | None = None) -> Job:
    """The job of the configuration at ``path``; raises ``ConfigError``."""
    config = load_config(path)
    sink = {"storage (acks)": config.sink.acks, "storage (dead_letters)": config.sink.dead_letters}
    folders = {"track.checkpoint": config.state.checkpoint, **sink}
    return Job(
        JobSession(config.state.shuffle_partitions, config.spark, [config.state.checkpoint]),
        lambda: check_start(config.transport, folders, config.sink.storage_options),
        lambda spark, stop: track_flushes(spark, config, stop, recovery),
    )
