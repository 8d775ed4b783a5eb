"""``flushtracker track``: the tracking job as a program, from its arguments to its exit code."""

import argparse

from flushtracker.config.job_config import load_config
from flushtracker.spark.job_run import JobSession, check_start, run_job
from flushtracker.tracking.job.query import Recovery, track_flushes


def run(arguments: argparse.Namespace) -> int:
    """Track until everything is read, or until SIGTERM or Ctrl-C."""
    recovery = Recovery(tuple(arguments.abandon)) if arguments.recover else None
    config = load_config(arguments.config)
    return run_job(
        "track",
        JobSession(config.state.shuffle_partitions, config.spark, [config.state.checkpoint]),
        lambda spark, stop: track_flushes(spark, config, stop, recovery),
        lambda: check_start(
            config.transport,
            {
                "state.checkpoint": config.state.checkpoint,
                "sink.acks": config.sink.acks,
                "sink.dead_letters": config.sink.dead_letters,
            },
            config.sink.storage_options,
        ),
        verbose=arguments.verbose,
        log_format=arguments.log_format,
    )
