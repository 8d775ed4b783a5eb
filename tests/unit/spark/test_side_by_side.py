"""Jobs of one Spark application: they end together, in order, and with the failure of the one that fails."""

import threading
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig
from flushtracker.errors import ConfigError, SinkError
from flushtracker.spark.job_run import Job, JobSession
from flushtracker.spark.side_by_side import side_by_side

_DEADLINE_S = 30.0


class _Session:
    """In place of Spark: counts its sessions, and knows the pool of each thread."""

    def __init__(self) -> None:
        self.sparkContext, self.sessions, self.pools = self, list[object](), dict[int, str]()

    def newSession(self) -> object:  # noqa: N802  Spark's name
        self.sessions.append(object())
        return self.sessions[-1]

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802  Spark's name
        assert name == "spark.scheduler.pool"
        self.pools[threading.get_ident()] = value


def _job(run: Callable[[Any, Event], None], settings: dict[str, str] | None = None, path: str = "p") -> Job:
    config = SparkConfig(settings=SecretOptions(settings or {}))
    return Job(JobSession(1, config, [path]), lambda: None, run)


def _run(jobs: dict[str, Job], stop: Event) -> _Session:
    spark = _Session()
    side_by_side(jobs).run(cast("SparkSession", spark), stop)
    return spark


def test_each_has_a_session_and_a_pool_of_its_own_and_all_end_in_order() -> None:
    """The second one goes on until the first has ended."""
    ended, running, stop, seen = list[str](), threading.Barrier(3), Event(), list[object]()

    def until_stopped(name: str) -> Callable[[Any, Event], None]:
        def run(spark: object, stopped: Event) -> None:
            seen.append(spark)
            running.wait(_DEADLINE_S)
            assert stopped.wait(_DEADLINE_S)
            ended.append(name)

        return run

    def stop_once_both_run() -> None:
        running.wait(_DEADLINE_S)
        stop.set()

    threading.Thread(target=stop_once_both_run).start()
    spark = _run({name: _job(until_stopped(name)) for name in ("write", "track")}, stop)
    assert ended == ["write", "track"]
    assert sorted(spark.pools.values()) == ["track", "write"]
    assert len(set(map(id, seen))) == len(spark.sessions) == 2


@pytest.mark.parametrize("failing", ["write", "track"])
def test_failure_of_one_stops_the_other_and_is_raised(failing: str) -> None:
    """The stop is set, so that the end may take only so long."""
    ended, stop = list[str](), Event()

    def until_stopped(_: object, stopped: Event) -> None:
        assert stopped.wait(_DEADLINE_S)
        ended.append("the other")

    def fail(_: object, __: Event) -> None:
        raise SinkError("the table is gone")

    jobs = {name: _job(fail if name == failing else until_stopped) for name in ("write", "track")}
    with pytest.raises(SinkError, match="the table is gone"):
        _run(jobs, stop)
    assert ended == ["the other"]
    assert stop.is_set()


def test_job_that_has_read_everything_does_not_stop_the_other() -> None:
    """As with the trigger available_now."""
    first_ended, ended = Event(), list[str]()

    def first(_: object, __: Event) -> None:
        first_ended.set()

    def second(_: object, stopped: Event) -> None:
        assert first_ended.wait(_DEADLINE_S)
        assert not stopped.wait(1.0)
        ended.append("second")

    _run({"write": _job(first), "track": _job(second)}, Event())
    assert ended == ["second"]


def test_settings_that_differ_are_refused_with_what_to_do() -> None:
    """All paths are in the session that they share, and all checks are made."""
    checked = list[str]()
    jobs = {
        name: _job(lambda _, __: None, path=name)._replace(check=partial(checked.append, name))
        for name in ("write", "track")
    }
    together = side_by_side(jobs)
    assert together.session.paths == ["write", "track"]
    together.check()
    assert checked == ["write", "track"]
    with pytest.raises(ConfigError, match=r"write and track differ in their section spark, .* the file's own section"):
        side_by_side(jobs | {"track": _job(lambda _, __: None, {"spark.x": "1"})})
