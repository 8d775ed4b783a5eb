"""``flushtracker topics``: checks the topics of the streams, and creates missing ones."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from flushtracker.errors import ConfigError
from flushtracker.events.topic_rules import TopicFacts, topic_faults
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.topic_admin import TopicAdmin

_MAX_TIMEOUT_S: Final = 8
"""Long enough for an interactive command, which the user can repeat."""


def run(arguments: argparse.Namespace) -> int:
    """Check the topics once; with ``--create``, create missing ones."""
    config = load_kafka_config(arguments.config)
    admin = TopicAdmin(config, timeout_s=min(config.retry_timeout_ms / 1000, _MAX_TIMEOUT_S))
    facts = admin.facts()
    missing = [role for role, topic in facts.items() if topic is None]
    if missing and arguments.create:
        admin.create(missing)
        facts = admin.facts()
    created = missing if arguments.create else []
    wrong = _report(config, facts, created)
    if wrong:
        hint = "" if arguments.create or not missing else "; --create creates the missing ones"
        raise ConfigError(f"{wrong} of {len(facts)} topics at {config.bootstrap_servers} are missing or wrong{hint}")
    return 0


def _report(config: KafkaConfig, facts: Mapping[str, TopicFacts | None], created: Sequence[str]) -> int:
    """Print each topic with all its faults; return the number of missing or wrong ones."""
    wrong = 0
    for role, topic in facts.items():
        if topic is None:
            print(f"{role}: there is no topic {config.topics.by_role()[role]}")
            wrong += 1
            continue
        limits = {"retention_ms": config.retention_ms, "max_event_bytes": config.max_event_bytes}
        faults = topic_faults(role, topic, **limits)
        state = "wrong" if faults else "created" if role in created else "ok"
        partitions = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
        print(f"{role}: topic {topic.name}, {partitions}: {state}")
        for fault in faults:
            print(f"  {fault}")
        wrong += bool(faults)
    return wrong
