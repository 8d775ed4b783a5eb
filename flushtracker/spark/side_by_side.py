"""Several jobs as one: the queries of one Spark application, which takes one JVM.

Each has a session of its own, so that none sees the settings of another. Each has a thread whose tasks get their share
of the cores, however many tasks another one has.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.errors import ConfigError
from flushtracker.spark.job_run import Job, JobSession

_POLL_S: Final = 0.2
_POOL: Final = "spark.scheduler.pool"


def side_by_side(jobs: Mapping[str, Job]) -> Job:
    """The jobs, by name, as one that ends when all have ended; they are stopped in this order, and all if one fails.

    Raises ``ConfigError`` if their settings for Spark differ.
    """
    sessions = [job.session for job in jobs.values()]
    first = sessions[0]
    if any(each.config != first.config for each in sessions):
        raise ConfigError(
            f"{' and '.join(jobs)} differ in their section spark, so they cannot be one Spark application: give all "
            "settings in the file's own section spark"
        )
    together = JobSession(first.shuffle_partitions, first.config, [path for each in sessions for path in each.paths])

    def check() -> None:
        for job in jobs.values():
            job.check()

    return Job(together, check, lambda spark, stop: _run(jobs, spark, stop))


def _run(jobs: Mapping[str, Job], spark: SparkSession, stop: Event) -> None:
    """Run all; raises the failure of one of them."""
    stops = {name: Event() for name in jobs}
    with ThreadPoolExecutor(len(jobs)) as threads:
        running = {name: threads.submit(_run_one, name, job, spark, stops[name]) for name, job in jobs.items()}
        while not stop.is_set() and _go_on(running.values()):
            pass
        # From now on, the end may take only so long.
        stop.set()
        for name, each in running.items():
            stops[name].set()
            wait([each])
    for each in running.values():
        each.result()


def _go_on(running: Collection["Future[None]"]) -> bool:
    """Wait a moment; false once one has failed, or all have ended."""
    done, left = wait(running, _POLL_S, FIRST_EXCEPTION)
    return bool(left) and not any(each.exception() for each in done)


def _run_one(name: str, job: Job, spark: SparkSession, stop: Event) -> None:
    spark.sparkContext.setLocalProperty(_POOL, name)
    job.run(spark.newSession(), stop)
