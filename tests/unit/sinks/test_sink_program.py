"""What ends `sink` before it feeds anything, and with which exit code."""

from collections.abc import Collection
from typing import Any

import pytest

from flushtracker.errors import BrokerError, ConfigError, TopicLostError
from flushtracker.events.topic_rules import TopicFacts
from flushtracker.sinks.job import program
from flushtracker.sinks.job.feed_config import FeedConfig
from flushtracker.sinks.job.live_sink_status import LiveSinkStatus
from tests.support.sink_world import STATE, SinkWorld


class _Admin:
    def __init__(self, *, lacking: str | None = None, policy: str = "compact") -> None:
        self._lacking, self._policy = lacking, policy

    def lacking_replicas(self, _topics: Collection[str]) -> str | None:
        return self._lacking

    def facts_of(self, names: Collection[str], _lost: dict[str, TopicLostError]) -> dict[str, TopicFacts]:
        return {name: TopicFacts(name, 1, {"cleanup.policy": self._policy}) for name in names}


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> FeedConfig:
    return SinkWorld(monkeypatch).config


@pytest.mark.parametrize("lacking", ["partition 0 of topic t has no leader", None])
def test_a_partition_in_which_the_last_transaction_cannot_end_is_named(
    monkeypatch: pytest.MonkeyPatch, config: FeedConfig, lacking: str | None
) -> None:
    """The brokers only say that another transaction is in progress."""

    def refuse(*_: Any) -> Any:
        raise BrokerError("no transaction")

    monkeypatch.setattr(program, "SinkFeeder", refuse)
    monkeypatch.setattr(program, "TopicAdmin", lambda _: _Admin(lacking=lacking))
    with pytest.raises(BrokerError) as raised:
        program._feeder(config, {}, LiveSinkStatus(), {})
    rest = "" if lacking is None else f"; its last transaction cannot end: {lacking}"
    assert str(raised.value) == f"no transaction{rest}"


def test_a_wrong_topic_of_the_state_is_an_error_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, config: FeedConfig
) -> None:
    """No shape works without it, so no shape is set aside for it."""
    monkeypatch.setattr(program, "TopicAdmin", lambda _: _Admin(policy="delete"))
    with pytest.raises(ConfigError, match=STATE) as raised:
        program._ready_topics(config, {})
    assert raised.value.exit_code == 2
