"""Settings for all tests."""

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer

from flushtracker.process.program import STOP_SIGNALS
from flushtracker.shape_log.table.log_table import create_shape_log
from tests.support.schedule import Durations, LongestFirst, mark_long, sort_longest_first
from tests.support.seeds import first_seed, turn

# A JVM of a test lives for seconds or minutes, and would use more CPU time to compile itself well than it saves.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["KAFKA_OPTS"] = "-XX:TieredStopAtLevel=1"

# The printed blob reproduces a failed example on any machine; a deadline would fail on a busy one.
# Half of the examples that it has by default: each run has new ones.
settings.register_profile("flushtracker", print_blob=True, deadline=None, max_examples=50)
# For nightly runs and changes to the core: pytest tests/unit --hypothesis-profile thorough
settings.register_profile("thorough", settings.get_profile("flushtracker"), max_examples=5_000)
# For make mutants: few examples, and the same ones for every mutant.
settings.register_profile(
    "mutants", settings.get_profile("flushtracker"), max_examples=25, derandomize=True, database=None
)
settings.load_profile("flushtracker")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="keep how long each test takes in this run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


def pytest_report_header() -> str:
    return f"FLUSHTRACKER_SEED={first_seed()} FLUSHTRACKER_TURN={turn()} repeats the histories and choices of this run"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests and their modules stay until the end: the garbage collector need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_long(items)
    if hasattr(config, "workerinput"):
        sort_longest_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """With ``--dist loadscope``."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A program that a test runs in this process leaves its handlers, which would ignore what another test sends.

    It leaves a thread, too, which ends the process a minute after such a signal.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own, and fails after ten minutes."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**fixtures), 600))
    return True


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The URI of an empty shape log."""
    uri = str(tmp_path / "log")
    create_shape_log(uri)
    return uri
