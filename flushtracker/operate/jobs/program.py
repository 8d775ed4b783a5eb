"""``flushtracker jobs``: the writers' job and the tracker's as one program, with one JVM for both."""

import argparse

from flushtracker.shape_log.write.program import writing_job
from flushtracker.spark.job_run import run_job
from flushtracker.spark.side_by_side import side_by_side
from flushtracker.tracking.job.program import tracking_job


def run(arguments: argparse.Namespace) -> int:
    """Write and track until everything is read, or until SIGTERM or Ctrl-C, when the writers stop first."""
    jobs = {"write": writing_job(arguments.config), "track": tracking_job(arguments.config)}
    return run_job("jobs", side_by_side(jobs), verbose=arguments.verbose, log_format=arguments.log_format)
