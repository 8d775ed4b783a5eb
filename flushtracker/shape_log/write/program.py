"""``flushtracker write``: the writers' job as a program, from its arguments to its exit code."""

import argparse
from pathlib import Path

from flushtracker.config.transport import FilesTransport
from flushtracker.config.write_config import WriteConfig, load_write_config
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.spark.job_run import Job, JobSession, check_start, run_job


def run(arguments: argparse.Namespace) -> int:
    """Write until everything is read, or until SIGTERM or Ctrl-C."""
    job = writing_job(arguments.config)
    return run_job("write", job, verbose=arguments.verbose, log_format=arguments.log_format)


def writing_job(path: Path) -> Job:
    config = load_write_config(path)
    return Job(
        JobSession(config.state.shuffle_partitions, config.spark, [config.state.checkpoint, config.sink.log]),
        lambda: check_start(config.transport, _folders(config), config.sink.storage_options),
        lambda spark, stop: write_shapes(spark, config, stop),
    )


def _folders(config: WriteConfig) -> dict[str, str]:
    """The folders that the job writes, by configuration key."""
    flushes = {"files.path/flushes": config.flushes.name} if isinstance(config.transport, FilesTransport) else {}
    sink = {"storage (log)": config.sink.log, "storage (log_shapes)": config.sink.shapes}
    return {"write.checkpoint": config.state.checkpoint, **sink, **flushes}
