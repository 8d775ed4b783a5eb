"""``flushtracker write``: the writers' job as a program, from its arguments to its exit code."""

import argparse

from flushtracker.config.transport import FilesTransport
from flushtracker.config.write_config import WriteConfig, load_write_config
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.spark.job_run import JobSession, check_start, run_job


def run(arguments: argparse.Namespace) -> int:
    """Write until everything is read, or until SIGTERM or Ctrl-C."""
    config = load_write_config(arguments.config)
    return run_job(
        "write",
        JobSession(config.state.shuffle_partitions, config.spark, [config.state.checkpoint, config.sink.log]),
        lambda spark, stop: write_shapes(spark, config, stop),
        lambda: check_start(config.transport, _folders(config), config.sink.storage_options),
        verbose=arguments.verbose,
        log_format=arguments.log_format,
    )


def _folders(config: WriteConfig) -> dict[str, str]:
    """The folders that the job writes, by configuration key."""
    flushes = {"flushes.directory": config.flushes.name} if isinstance(config.transport, FilesTransport) else {}
    sink = {"sink.log": config.sink.log, "sink.shapes": config.sink.shapes}
    return {"state.checkpoint": config.state.checkpoint, **sink, **flushes}
