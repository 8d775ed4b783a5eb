"""``flushtracker conformance-loop``: runs a trial of the whole loop."""

import argparse
import logging
import secrets
import time
from collections import Counter
from random import Random
from typing import Final

from flushtracker.errors import printable
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.process.new_folder import new_folder
from flushtracker.process.program import StopRequest, log_to_stderr, print_status
from flushtracker.trials.loop_trial.bank_workload import TOTAL
from flushtracker.trials.loop_trial.history import RULES, History
from flushtracker.trials.loop_trial.play import WEIGHTS, Plan, Programs, play
from flushtracker.trials.loop_trial.trial_resources import TrialResources
from flushtracker.trials.loop_trial.trial_setup import Part, create_setup
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)
_UNSEEN: Final = (
    "Not tested: PostgreSQL, brokers or storage that are killed, full, slow or restored, promotions, schema changes, "
    "two captures at once, upgrades, events over HTTP, caches, and anything between two looks that was over by the "
    "second."
)
_SEEDS: Final = 1_000_000
_NAME: Final = "flushtracker conformance-loop"


def run(arguments: argparse.Namespace, module: str = "flushtracker") -> int:
    """Run a trial, print the result of each rule, and remove everything; ``module`` is run as each program."""
    log_to_stderr(log_format=arguments.log_format)
    StopRequest()
    SPARK_JARS.fetch()
    name, seed = f"flushtracker_trial_{secrets.token_hex(4)}", arguments.seed or secrets.randbelow(_SEEDS) + 1
    folder = new_folder(arguments.data.absolute() / name)
    rng = Random(seed)  # noqa: S311  reproducible
    settings = {"flush": rng.choice(["batch", "hold"]), "write_unit": rng.choice(["txn", "txn_fragment"])}
    setup = create_setup(arguments.config, name, folder, **settings)
    chosen = " ".join(f"{key}={value}" for key, value in settings.items())
    _print(f"seed {seed}, {chosen}; configurations and logs in {folder}", arguments)
    _print(f"schema, publication and slot {name} and topics {name}.* are removed at the end", arguments)
    _print(f"if this command is killed: SELECT pg_drop_replication_slot('{name}'), or the slot retains WAL", arguments)
    plan = Plan(arguments.kills, seed, arguments.timeout, min(arguments.timeout / 8, 8.0))
    with TrialResources(setup) as resources:
        history = History(TOTAL, resources.first_lsn)
        progress = _Progress(history)
        is_complete = False
        try:
            with Programs(setup, folder, module) as programs:
                play(plan, setup, history, programs, progress.report)
                is_complete = not history.violations
        except KeyboardInterrupt:
            _print("stopped before its end", arguments)
    print(progress.summary(seed))
    _print_rules(history, is_complete=is_complete)
    return 0 if is_complete else 1


class _Progress:
    """Logs each kill and each pause."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._kills = Counter[Part]()
        self._started = time.monotonic()

    def report(self, part: Part | None) -> None:
        """Count a kill of ``part``; ``None`` means that everything was compared during a pause."""
        if part is not None:
            self._kills[part] += 1
        history = self._history
        logger.info(
            "%s kills=%d part=%s committed=%d confirmed_lsn=%s reads=%d s=%.0f broken_rules=%s",
            "compared at rest" if part is None else "killed",
            self._kills.total(),
            part or "none",
            history.committed,
            format_lsn(max(history.confirmed_lsn, 0)),
            history.reads,
            time.monotonic() - self._started,
            ",".join(history.violations) or "none",
        )

    def summary(self, seed: int) -> str:
        """Return how much was tested, as text."""
        kills = ", ".join(f"{self._kills[part]} of {part}" for part in WEIGHTS)
        took_s = time.monotonic() - self._started
        return (
            f"{self._kills.total()} kills ({kills}), {self._history.committed:,} transactions, "
            f"{self._history.reads:,} reads, {self._history.http_reads:,} over HTTP, {took_s:.0f} s, seed {seed}"
        )


def _print_rules(history: History, *, is_complete: bool) -> None:
    for rule, meaning in RULES.items():
        outcome = "FAIL" if rule in history.violations else "pass" if is_complete else "?"
        print(f"{outcome:4}  {rule:8}  {meaning}")
        if rule in history.violations:
            print(f"      {printable(history.violations[rule])}")
    if not is_complete:
        print("?: the trial ended early, before the rule was fully tested")
    print(_UNSEEN)


def _print(line: str, arguments: argparse.Namespace) -> None:
    print_status(_NAME, line, arguments.log_format)
