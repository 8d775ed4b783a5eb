"""``flushtracker write``: the writers' job as a program, from its arguments to its exit code."""

import argparse

from flushtracker.config.write_config import load_write_config
from flushtracker.spark.job_run import run_job
from flushtracker.writers.write_shapes_query import write_shapes


def run(arguments: argparse.Namespace) -> int:
    """Write until everything is read, or until SIGTERM or Ctrl-C."""
    config = load_write_config(arguments.config)
    return run_job(
        "write",
        config.state.shuffle_partitions,
        lambda spark, stop: write_shapes(spark, config, stop),
        verbose=arguments.verbose,
        log_format=arguments.log_format,
    )
