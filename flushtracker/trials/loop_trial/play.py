"""``play``: one trial from a seed: a workload, kills at random times, and comparisons during pauses.

Between the kills the observer reads the slot, the acks and the shapes, and before them for a while in which the writers
are suspended. After some kills the workload pauses: then everything must be confirmed, and each shape must have the
rows of its query.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, get_args

from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.trials.loop_trial.bank_workload import Workload
from flushtracker.trials.loop_trial.history import History
from flushtracker.trials.loop_trial.observer import Observer
from flushtracker.trials.loop_trial.trial_setup import Part, TrialSetup

PARTS: Final[tuple[Part, ...]] = get_args(Part)
_COMMANDS: Final[Mapping[Part, str]] = {"capture": "capture", "tracker": "track", "writers": "write"}


class Programs:
    """A context manager in which all of them run; each logs to ``<part>.log`` in ``folder``.

    Python runs ``module`` in place of flushtracker.
    """

    def __init__(self, setup: TrialSetup, folder: Path, module: str = "flushtracker") -> None:
        self._setup = setup
        self._folder = folder
        self._module = module
        self._running: dict[Part, GuardedProcess] = {}

    def __enter__(self) -> "Programs":
        for part in PARTS:
            self._start(part)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()

    def kill(self, part: Part) -> None:
        """Send SIGKILL to all processes of a program, and start it again at once."""
        self._running.pop(part).kill()
        self._start(part)

    @contextmanager
    def suspended(self, part: Part) -> Iterator[None]:
        """Suspend all processes of a program within the block."""
        self._running[part].suspend()
        try:
            yield
        finally:
            self._running[part].resume()

    def raise_failure(self) -> None:
        """Raise the error of a program that has exited on its own."""
        for process in self._running.values():
            if (failure := process.failure()) is not None:
                raise failure

    def _start(self, part: Part) -> None:
        scratch = self._folder / "scratch"
        scratch.mkdir(exist_ok=True)
        # Killed Spark drivers leave temporary files behind.
        setup = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        command = [sys.executable, "-m", self._module, _COMMANDS[part], "--config", str(self._setup.files[part])]
        log = self._folder / f"{part}.log"
        self._running[part] = GuardedProcess(part, command, log=log, env={**os.environ, **self._setup.env, **setup})


WEIGHTS: Final[dict[Part, int]] = {"tracker": 3, "writers": 3, "capture": 2}
_PROGRESS_CHANCE: Final = 0.6
"""The probability that a kill waits until the slot has advanced since the last one; other kills may hit a start."""
_REST_EVERY: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """``timeout_s`` is how long the slot may stay at one LSN. Two kills are at most ``longest_delay_s`` apart."""

    kills: int
    seed: int
    timeout_s: float
    longest_delay_s: float = 8.0


def play(
    plan: Plan, setup: TrialSetup, history: History, programs: Programs, report: Callable[[Part | None], None]
) -> None:
    """Run until all kills are done, or a rule is violated; ``report`` is called after each kill and each pause.

    Raises:
        FlushtrackerError: a program has exited on its own, or something cannot be reached: the trial has no verdict.
    """
    rng, lock = random.Random(plan.seed), Lock()  # noqa: S311  reproducible
    observer = Observer(setup, history, lock, programs.raise_failure)
    if not observer.await_shapes(plan.timeout_s):
        history.violate("live", f"the shapes cannot be read {plan.timeout_s:.0f} s after the start")
    kills = 0
    while kills < plan.kills and not history.violations:
        with Workload(setup.connection, setup.name, history, lock, rng.randrange(1 << 30)) as workload:
            # Nothing becomes durable now, so an ack of what is not is seen at any look.
            with programs.suspended("writers"):
                observer.observe_for(plan.longest_delay_s)
            for _ in range(min(_REST_EVERY, plan.kills - kills)):
                _await_moment(plan, observer, history, rng)
                if history.violations:
                    break
                (part,) = rng.choices([*WEIGHTS], [*WEIGHTS.values()])
                programs.kill(part)
                kills += 1
                report(part)
            if not history.violations:
                # The program killed last should have work to do.
                observer.observe_for(rng.uniform(0, plan.longest_delay_s))
        if workload.failure is not None:
            raise workload.failure
        if not history.violations:
            observer.check_end(plan.timeout_s)
            report(None)


def _await_moment(plan: Plan, observer: Observer, history: History, rng: random.Random) -> None:
    if rng.random() < _PROGRESS_CHANCE and not observer.await_progress(plan.timeout_s):
        history.violate("live", f"the slot has not advanced for {plan.timeout_s:.0f} s, while changes are written")
    if not history.violations:
        observer.observe_for(rng.uniform(0, plan.longest_delay_s))
