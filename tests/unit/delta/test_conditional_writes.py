"""A job finds out at its start whether its store ignores ``If-None-Match``."""

import logging
import time
from pathlib import Path

import pytest

from flushtracker.delta.conditional_writes import require_conditional_writes
from flushtracker.errors import ConfigError
from flushtracker.local.free_ports import free_port
from tests.support.faulty_proxy import RESET, Fault, faulty_proxy
from tests.support.object_store import running_store, store_options

_URI = "s3://bucket/acks"
_TRIED = r"acks/\.flushtracker-tried-"


def test_store_that_ignores_the_condition_is_refused() -> None:
    """Two drivers on it would replace each other's commits."""
    with running_store(replaces=True) as (port, _), pytest.raises(ConfigError) as caught:
        require_conditional_writes("storage", _URI, store_options(port))
    assert str(caught.value) == (
        "storage: the object store of s3://bucket/acks ignores If-None-Match, so two programs would replace each "
        "other's commits; use a store, or a version of it, with conditional writes"
    )


@pytest.mark.parametrize("uri", [_URI, "s3a://bucket/acks"])
def test_store_with_conditional_writes_is_accepted(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """By two requests, and one that deletes what they have put, so nothing is left."""
    with running_store() as (port, _), faulty_proxy(port) as proxy:
        # Three more of each request could be delayed by nothing.
        proxy.add(Fault("PUT .*" + _TRIED, times=5), Fault("DELETE .*" + _TRIED, times=4))
        require_conditional_writes("storage", uri, store_options(proxy.port))
        assert proxy.left() == 6
    assert caplog.text == ""


@pytest.mark.parametrize("status", [500, RESET])
def test_lost_answer_to_the_first_write_is_no_refusal(status: int) -> None:
    """Its retry is refused, and then the second write, too."""
    with running_store() as (port, _), faulty_proxy(port) as proxy:
        proxy.add(Fault("PUT .*" + _TRIED, status, takes_effect=True))
        require_conditional_writes("storage", _URI, store_options(proxy.port))
        assert proxy.left() == 0


def test_store_that_does_not_answer_is_left_to_the_table(caplog: pytest.LogCaptureFixture) -> None:
    """The table reports it; here it only bounds how long it is tried."""
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        require_conditional_writes("storage", _URI, store_options(free_port()))
    assert time.monotonic() - started < 30
    assert "it is unknown whether the object store has conditional writes uri=s3://bucket/acks" in caplog.text


def test_nothing_is_tried_where_it_says_nothing(tmp_path: Path) -> None:
    """A disk links a commit to its name, other stores have conditions, and a lock replaces them."""
    for uri in (str(tmp_path), f"file://{tmp_path}", "abfss://c@x.dfs.core.windows.net/a", "gs://b/a"):
        require_conditional_writes("storage", uri, {})
    with running_store(replaces=True) as (port, _):
        require_conditional_writes("storage", _URI, store_options(port) | {"aws_s3_locking_provider": "dynamodb"})
    assert not list(tmp_path.iterdir())
