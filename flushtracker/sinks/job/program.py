"""``flushtracker sink``: the feeder as a program, from its arguments to its exit code."""

import argparse
from contextlib import closing, suppress
from typing import Final

from flushtracker.config.streams import FLUSHES, SHAPE_CHANGES, SHAPES, SNAPSHOTS_TAKEN
from flushtracker.errors import BrokerError, ConfigError, TopicLostError
from flushtracker.events.topic_rules import TopicFacts, topic_faults
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from flushtracker.process.program import StopFlag, log_to_stderr, set_on_signals
from flushtracker.process.stop_deadline import exit_if_hung
from flushtracker.sinks.job.feed_config import FeedConfig, load_feed_config
from flushtracker.sinks.job.feeder import SinkFeeder
from flushtracker.sinks.job.live_sink_status import LiveSinkStatus
from flushtracker.status.http.status_server import serving

STOP_TIMEOUT_S: Final = 60.0


def run(arguments: argparse.Namespace) -> int:
    """Feed the topics until SIGTERM or Ctrl-C."""
    config = load_feed_config(arguments.config)
    log_to_stderr(log_format=arguments.log_format)
    stop = StopFlag()
    set_on_signals(stop)
    exit_if_hung("flushtracker sink", stop.is_set, STOP_TIMEOUT_S, arguments.log_format)
    require_topics(config.kafka, (SHAPES, SHAPE_CHANGES, FLUSHES))
    live, lost = LiveSinkStatus(), dict[str, TopicLostError]()
    topics = _ready_topics(config, lost)
    with serving(config.status, live.read):
        while not stop.is_set():
            with closing(_feeder(config, topics, live, lost)) as feeder:
                try:
                    feeder.run(stop.is_set)
                except TopicLostError as error:
                    if error.topic in lost or error.topic not in topics.keys() - {config.state_topic}:
                        raise
                    lost[error.topic] = error
    return 0


def _feeder(
    config: FeedConfig, topics: dict[str, TopicFacts], live: LiveSinkStatus, lost: dict[str, TopicLostError]
) -> SinkFeeder:
    """The next feeder. Kafka begins no transaction before the last one has ended in all topics that it wrote to.

    Raises:
        BrokerError: the brokers do not answer, or refuse something; a partition that lacks replicas is named.
    """
    try:
        return SinkFeeder(config, topics, live, lost)
    except BrokerError as error:
        lacking = None
        with suppress(BrokerError):
            lacking = TopicAdmin(config.kafka).lacking_replicas(sorted(topics))
        if lacking is None:
            raise
        raise BrokerError(f"{error}; its last transaction cannot end: {lacking}") from error


def _ready_topics(config: FeedConfig, lost: dict[str, TopicLostError]) -> dict[str, TopicFacts]:
    """Each topic, after the missing ones are created, without those that are wrong or refused: they are ``lost``.

    Raises:
        ConfigError: the topic of the state is wrong.
        BrokerError: the brokers do not answer, or refuse something else; the topic of the state is lost.
    """
    admin = TopicAdmin(config.kafka)
    # A sink's topic keeps all records until they are read, as shape changes are kept.
    roles = {topic.name: (SHAPE_CHANGES, topic.partitions) for topic in config.topics.values()}
    roles[config.state_topic] = SNAPSHOTS_TAKEN, 1
    facts = admin.facts_of(roles, lost)
    missing = {name: roles[name] for name, each in facts.items() if each is None}
    if missing:
        facts |= admin.create_as(missing, lost)
    limits = {"retention_ms": config.kafka.retention_ms, "max_event_bytes": config.kafka.max_event_bytes}
    found = {name: each for name, each in facts.items() if each is not None}
    for name, each in found.items():
        if faults := topic_faults(roles[name][0], each, **limits):
            if name == config.state_topic:
                raise ConfigError("; ".join(faults))
            lost[name] = TopicLostError("; ".join(faults), name)
    if config.state_topic in lost:
        raise lost[config.state_topic]
    return found
