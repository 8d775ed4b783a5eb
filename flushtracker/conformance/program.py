"""``flushtracker conformance``: tests a writer against the contract, from its arguments to its exit code."""

import argparse
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from flushtracker.conformance.judge import RULES, Judge, Rule
from flushtracker.conformance.subject import Subject
from flushtracker.conformance.trial import Trial
from flushtracker.errors import ConfigError, printable
from flushtracker.kafka.kafka_config import KafkaConfig, Topics, load_kafka_config
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.kafka.topic_rules import ROLES
from flushtracker.local.broker import LocalBroker
from flushtracker.process.program import log_to_stderr, print_status

_VARIABLE: Final = "FLUSHTRACKER_OPTION_{}"


def run(arguments: argparse.Namespace) -> int:
    """Play one trial, and print the outcome of each rule."""
    log_to_stderr(log_format=arguments.log_format)
    started = time.monotonic()
    name = f"{arguments.seed}-{secrets.token_hex(3)}"
    folder: Path = arguments.data.absolute() / name
    data = folder / "storage"
    try:
        data.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--data: {folder} cannot be created: {error.strerror}; name another directory") from error
    with ExitStack() as stack:
        config = _streams(arguments.kafka, folder, name, stack)
        TopicAdmin(config).create(ROLES)
        file, env = write_config(config, folder / "kafka.yaml")
        subject, judge = Subject(arguments.writer, arguments.dump, config=file, data=data, env=env), Judge()
        line = f"seed {arguments.seed}, data and logs in {folder}"
        print_status("flushtracker conformance", line, arguments.log_format)
        trial = Trial(config, subject, judge, seed=arguments.seed, timeout_s=arguments.timeout)
        is_complete = trial.run(arguments.kills)
    took_s = time.monotonic() - started
    print(f"{trial.kills} kills, {judge.events_sent:,} events, {took_s:.0f} s, seed {arguments.seed}")
    _print_rules(judge.violations, is_complete=is_complete)
    return 0 if is_complete and not judge.violations else 1


def _streams(kafka: Path | None, folder: Path, name: str, stack: ExitStack) -> KafkaConfig:
    """New topics for the trial, on the brokers of the file or on a broker that it starts."""
    if kafka is None:
        broker = stack.enter_context(LocalBroker(folder / "broker"))
        topics = Topics(**{role: role for role in ROLES})
        return KafkaConfig(broker.bootstrap_servers, topics, replication_factor=1)
    config = load_kafka_config(kafka)
    return replace(config, topics=Topics(**{role: f"flushtracker.conformance.{name}.{role}" for role in ROLES}))


def write_config(config: KafkaConfig, file: Path) -> tuple[Path, Mapping[str, str]]:
    """The writer's configuration, and the variables that it refers to: the values of options may be secret."""
    variables = {option: _VARIABLE.format(number) for number, option in enumerate(config.options)}
    settings = {
        "bootstrap_servers": config.bootstrap_servers,
        "topics": config.topics.by_role(),
        "options": {option: f"${{{variable}}}" for option, variable in variables.items()},
        "retry_timeout": f"{config.retry_timeout_ms} ms",
    }
    # JSON is YAML.
    file.write_text(json.dumps(settings, indent=2))
    return file, {variable: config.options[option] for option, variable in variables.items()}


def _print_rules(violations: Mapping[Rule, str], *, is_complete: bool) -> None:
    for rule, meaning in RULES.items():
        outcome = "FAIL" if rule in violations else "pass" if is_complete else "?"
        print(f"{outcome:4}  {rule:8}  {meaning}")
        if rule in violations:
            print(f"      {printable(violations[rule])}")
    if not is_complete:
        print("?: the trial ended early, before the rule was fully tested")
