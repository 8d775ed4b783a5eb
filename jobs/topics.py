"""Check the Kafka topics of the streams, and create those that are missing.

Says all that is wrong with the topics named in the configuration. With
--create it creates missing ones with the right settings. A topic that exists
is never altered or deleted.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from flushtracker.command_line import run_program
from flushtracker.errors import ConfigError
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.kafka.topic_rules import TopicFacts, topic_faults

_EPILOG = """\
exit codes: 0 all topics are right; 1 anything not foreseen; 2 a topic is
missing or wrong, the arguments or the configuration; 6 Kafka cannot be
reached, or refuses what it is asked
"""
_PATIENCE_S = 10
"""Whoever waits for the answer at a terminal would rather ask again."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="such as conf/kafka.yaml")
    parser.add_argument("--create", action="store_true", help="create the topics that are missing")
    parser.add_argument("--verbose", action="store_true", help="a traceback with an error")
    arguments = parser.parse_args(argv)
    return run_program("topics", partial(_topics, arguments), verbose=arguments.verbose)


def _topics(arguments: argparse.Namespace) -> int:
    config = load_kafka_config(arguments.config)
    admin = TopicAdmin(config, timeout_s=min(config.wait_ms / 1000, _PATIENCE_S))
    facts = admin.facts()
    missing = [role for role, topic in facts.items() if topic is None]
    if missing and arguments.create:
        admin.create(missing)
        facts = admin.facts()
    created = missing if arguments.create else []
    wrong = _report(config, facts, created)
    if wrong:
        hint = "" if arguments.create or not missing else "; --create creates those that are missing"
        raise ConfigError(f"{wrong} of {len(facts)} topics at {config.bootstrap_servers} are missing or wrong{hint}")
    return 0


def _report(config: KafkaConfig, facts: Mapping[str, TopicFacts | None], created: Sequence[str]) -> int:
    """Print each topic with all its faults; returns how many are missing or wrong."""
    wrong = 0
    for role, topic in facts.items():
        if topic is None:
            print(f"{role}: there is no topic {config.topics.by_role()[role]}")
            wrong += 1
            continue
        faults = topic_faults(role, topic, retention_ms=config.retention_ms)
        state = "wrong" if faults else "created" if role in created else "right"
        partitions = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
        print(f"{role}: topic {topic.name}, {partitions}: {state}")
        for fault in faults:
            print(f"  {fault}")
        wrong += bool(faults)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
