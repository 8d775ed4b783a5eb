"""``flushtracker conformance``: tests a writer against the contract."""

import argparse
import json
import logging
import secrets
import time
from collections.abc import Mapping, Set
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from flushtracker.config.streams import FLUSHES
from flushtracker.errors import printable
from flushtracker.events.topic_rules import ROLES, SNAPSHOT_ROLES, Topics
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.local.broker import LocalBroker
from flushtracker.process.new_folder import new_folder
from flushtracker.process.program import log_to_stderr, print_status
from flushtracker.trials.conformance.judge import RULES, Judge, Rule
from flushtracker.trials.conformance.subject import Commands, Subject
from flushtracker.trials.conformance.trial import Trial
from flushtracker.trials.power_failure.sync_watch import require_seccomp
from flushtracker.trials.power_failure.unsynced_disk import UnsyncedDisk

logger = logging.getLogger(__name__)
_LOG_PERIOD_S: Final = 5.0
_OPTIONAL: Final[Mapping[Rule, tuple[str, str]]] = {
    "power": ("power_loss", "a kill loses nothing that was written without fsync; --power-loss does"),
    "whole": ("read", "needs --read"),
    "rows": ("rows", "needs --rows"),
    "snapshot": ("rows", "needs --rows"),
}
"""For each rule that is tested only with an option, that option, and why it is not tested without."""

_UNSEEN: Final = "Not tested: lost disks and replicas, storage that is full or slow, two writers at once, upgrades."
_ROLES: Final = (*ROLES, *SNAPSHOT_ROLES)
_VARIABLE: Final = "FLUSHTRACKER_OPTION_{}"


def run(arguments: argparse.Namespace) -> int:
    """Run a trial for each seed until one violates a rule, and print the result of each rule."""
    log_to_stderr(log_format=arguments.log_format)
    if arguments.power_loss:
        require_seccomp()
    name = secrets.token_hex(4)
    folder = new_folder(arguments.data.absolute() / name)
    print_status("flushtracker conformance", f"data and logs in {folder}", arguments.log_format)
    progress = _Progress(arguments.name)
    seeds = range(arguments.seed, arguments.seed + min(arguments.seeds, arguments.kills))
    with ExitStack() as stack:
        brokers = _brokers(arguments.kafka, folder, stack)
        for number, seed in enumerate(seeds):
            topics = Topics(**{role: f"flushtracker.conformance.{name}.{seed}.{role}" for role in _ROLES})
            judge = progress.begin(seed)
            with ExitStack() as trials:
                config = replace(brokers, topics=topics)
                trial = _trial(arguments, config, folder / f"seed-{seed}", seed, progress, trials)
                # All kills are divided among the seeds.
                kills = (arguments.kills - number - 1) // len(seeds) + 1
                is_complete = trial.run(kills)
            if judge.violations or not is_complete:
                break
    print(progress.summary())
    untested = {rule for rule, (option, _) in _OPTIONAL.items() if not getattr(arguments, option)}
    _print_rules(judge.violations, untested, is_complete=is_complete)
    return 0 if is_complete and not judge.violations else 1


class _Progress:
    """Logs the progress over all trials from time to time."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self.judge = Judge(writer)
        self._kills = 0
        self._events_before = 0
        self._seed = 0
        self._started = self._logged = time.monotonic()

    def begin(self, seed: int) -> Judge:
        self._events_before += self.judge.events_sent
        self._seed, self.judge = seed, Judge(self._writer)
        return self.judge

    def handle_kill(self) -> None:
        """Count a kill, after it was checked."""
        self._kills += 1
        now = time.monotonic()
        if now >= self._logged + _LOG_PERIOD_S:
            self._logged = now
            broken = ",".join(self.judge.violations) or "none"
            logger.info(
                "testing kills=%d seed=%d events=%d s=%.0f broken_rules=%s",
                self._kills,
                self._seed,
                self._events,
                now - self._started,
                broken,
            )

    def summary(self) -> str:
        """Return how much was tested, as text."""
        took_s = time.monotonic() - self._started
        return f"{self._kills} kills, {self._events:,} events, {took_s:.0f} s, last seed {self._seed}"

    @property
    def _events(self) -> int:
        return self._events_before + self.judge.events_sent


def _brokers(kafka: Path | None, folder: Path, stack: ExitStack) -> KafkaConfig:
    """Return the brokers of the file; without a file, start a broker that ``stack`` stops."""
    if kafka is not None:
        return load_kafka_config(kafka)
    broker = stack.enter_context(LocalBroker(folder / "broker"))
    topics = Topics(**{role: role for role in _ROLES})
    return KafkaConfig(broker.bootstrap_servers, topics, replication_factor=1)


def _trial(
    arguments: argparse.Namespace, config: KafkaConfig, folder: Path, seed: int, progress: _Progress, stack: ExitStack
) -> Trial:
    data = new_folder(folder / "storage")
    TopicAdmin(config).create(_ROLES)
    file, env = write_config(config, folder / "flushtracker.yaml")
    disk = stack.enter_context(closing(UnsyncedDisk(data, folder / "synced"))) if arguments.power_loss else None
    commands = Commands(arguments.writer, arguments.dump, arguments.read, arguments.rows, arguments.name)
    subject = Subject(commands, config=file, data=data, env=env, disk=disk)
    return Trial(
        config, subject, progress.judge, seed=seed, timeout_s=arguments.timeout, handle_kill=progress.handle_kill
    )


def write_config(config: KafkaConfig, file: Path) -> tuple[Path, Mapping[str, str]]:
    """Write the writer's configuration; returns it and the variables it refers to, because option values may be
    secret.
    """
    variables = {option: _VARIABLE.format(number) for number, option in enumerate(config.options)}
    kafka = {
        "bootstrap_servers": config.bootstrap_servers,
        "topic_prefix": config.topics.flushes.removesuffix(f".{FLUSHES}"),
        "options": {option: f"${{{variable}}}" for option, variable in variables.items()},
        "retry_timeout": f"{config.retry_timeout_ms} ms",
    }
    # JSON is YAML. Snapshots are published, so the writer reads their topics.
    file.write_text(json.dumps({"kafka": kafka, "snapshot": {"into": "kafka"}}, indent=2))
    return file, {variable: config.options[option] for option, variable in variables.items()}


def _print_rules(violations: Mapping[Rule, str], untested: Set[Rule], *, is_complete: bool) -> None:
    for rule, meaning in RULES.items():
        outcome = "FAIL" if rule in violations else "-" if rule in untested else "pass" if is_complete else "?"
        print(f"{outcome:4}  {rule:8}  {meaning}")
        if rule in violations:
            print(f"      {printable(violations[rule])}")
    if not is_complete:
        print("?: the trial ended early, before the rule was fully tested")
    for rule in RULES:
        if rule in untested:
            print(f"-: {rule} is not tested: {_OPTIONAL[rule][1]}")
    print(_UNSEEN)
