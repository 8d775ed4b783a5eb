"""``play``: one trial from a seed: a workload, kills at random times, and comparisons during pauses.

Between the kills the observer reads the slot, the acks and the shapes, and clients follow these over HTTP. Before the
kills the writers are suspended for a while, and the server with the tail is killed. After some kills the workload
pauses: then everything must be confirmed, and each shape and client must have the rows of its query.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.trials.loop_trial.bank_workload import Workload
from flushtracker.trials.loop_trial.history import History
from flushtracker.trials.loop_trial.http_readers import HttpReaders
from flushtracker.trials.loop_trial.observer import Observer
from flushtracker.trials.loop_trial.trial_setup import PARTS, SERVERS, Part, TrialSetup

_COMMANDS: Final[Mapping[Part, str]] = {
    "capture": "capture",
    "tracker": "track",
    "writers": "write",
    "tail_server": "serve",
    "plain_server": "serve",
}


class Programs:
    """A context manager in which all of them run; each logs to ``<part>.log`` in ``folder``.

    The servers run from :meth:`start_servers` on, which needs the tables of the other programs.

    Python runs ``module`` in place of flushtracker.
    """

    def __init__(self, setup: TrialSetup, folder: Path, module: str = "flushtracker") -> None:
        self._setup = setup
        self._folder = folder
        self._module = module
        self._running: dict[Part, GuardedProcess] = {}

    def __enter__(self) -> "Programs":
        for part in PARTS:
            if part not in SERVERS:
                self._start(part)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()

    def start_servers(self) -> None:
        """Start them once the shapes can be read."""
        for part in SERVERS:
            self._start(part)

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


WEIGHTS: Final[dict[Part, int]] = {"tracker": 3, "writers": 3, "capture": 2, "tail_server": 1, "plain_server": 1}
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
    shape_ids = [definition.id for definition in load_shapes(setup.shapes_file)]
    readers = HttpReaders([*setup.ports.values()], shape_ids, history, lock, plan.seed)

    def raise_failure() -> None:
        programs.raise_failure()
        readers.raise_failure()

    observer = Observer(setup, history, lock, raise_failure)
    if not observer.await_shapes(plan.timeout_s):
        history.violate("live", f"the shapes cannot be read {plan.timeout_s:.0f} s after the start")
    else:
        programs.start_servers()
    kills = 0
    with readers:
        while kills < plan.kills and not history.violations:
            with Workload(setup.connection, setup.name, history, lock, rng.randrange(1 << 30)) as workload:
                _play_without_writers(plan, observer, programs)
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
                observer.check_end(plan.timeout_s, readers)
                report(None)


def _play_without_writers(plan: Plan, observer: Observer, programs: Programs) -> None:
    """Nothing becomes durable meanwhile, so any look shows an ack of a change that is not durable.

    Clients are ahead of the log, by a tail that then begins after their changes.
    """
    with programs.suspended("writers"):
        observer.observe_for(plan.longest_delay_s / 2)
        programs.kill("tail_server")
        observer.observe_for(plan.longest_delay_s)


def _await_moment(plan: Plan, observer: Observer, history: History, rng: random.Random) -> None:
    if rng.random() < _PROGRESS_CHANCE and not observer.await_progress(plan.timeout_s):
        history.violate("live", f"the slot has not advanced for {plan.timeout_s:.0f} s, while changes are written")
    if not history.violations:
        observer.observe_for(rng.uniform(0, plan.longest_delay_s))
