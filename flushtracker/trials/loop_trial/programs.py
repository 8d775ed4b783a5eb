"""``Programs``: capture, tracker and writers of a trial, as processes that can be killed."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args

from flushtracker.process.guarded_process import GuardedProcess
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
