"""``Supervisor``: child processes of this machine; those that end retryably are started again.

Until :attr:`Supervisor.has_run` is set, only a kill is retried: what ends a first start, such as a wrong password, is
for the one who has started it. From then on, so is an exit for a reason outside, after a second, and each time after
twice as long.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.process.guarded_process import GuardedProcess, child_environment

RETRYABLE: Final = frozenset({1, 5, 6, 7})
"""Anything unexpected, Delta, Kafka, PostgreSQL; not the configuration, the input, the checkpoint, a held slot."""
_SIGNALLED: Final = 128
_FENCED: Final = "has been fenced"
"""Another process does the work of this one. A restart would fence that in turn."""
_MOST_DELAY_S: Final = 60
_STEADY_S: Final = 60.0
"""After this long, the next exit is not taken for a consequence of the last one."""


@dataclass(slots=True)
class _Child:
    process: GuardedProcess | None = None
    started_s: float = 0.0
    exits: int = 0


class Supervisor:
    """The children by name, as started. ``show`` gets each line of a child's output, ``say`` what happens to it."""

    def __init__(
        self, commands: Mapping[str, Sequence[str]], show: Callable[[str, str], None], say: Callable[[str], None]
    ) -> None:
        self._commands = commands
        self._show = show
        self._say = say
        self._children: dict[str, _Child] = {}
        self.has_run = False
        """Whether all of them have worked together once."""

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of those that run."""
        return {name: child.process.pid for name, child in self._children.items() if child.process is not None}

    def is_started(self, name: str) -> bool:
        return name in self._children

    def start(self, name: str) -> None:
        """Start a child for the first time."""
        self._children[name] = child = _Child()
        self._run(name, child)

    def check(self) -> None:
        """Restart children that ended retryably; raises the failure of a child that must not be restarted."""
        for name, child in self._children.items():
            if child.process is None:
                if time.monotonic() >= child.started_s:
                    self._run(name, child)
            elif (failure := child.process.failure()) is not None:
                self._ended(child, child.process, failure)

    def stop(self, name: str) -> None:
        """Stop a child gracefully, and wait until it has ended."""
        child = self._children.pop(name, _Child())
        if child.process is not None:
            self._say(f"stopping {name}")
            child.process.stop()

    def close(self) -> None:
        """Kill the children that have not been stopped."""
        for child in self._children.values():
            if child.process is not None:
                child.process.kill()
        self._children.clear()

    def _run(self, name: str, child: _Child) -> None:
        child.started_s = time.monotonic()
        child.process = GuardedProcess(
            name, self._commands[name], log=lambda line: self._show(name, line), env=child_environment()
        )

    def _ended(self, child: _Child, process: GuardedProcess, failure: FlushtrackerError) -> None:
        process.kill()  # What it may have left of its process group, such as Spark's JVM.
        child.process = None
        is_signal = failure.exit_code > _SIGNALLED
        if not is_signal and not (self.has_run and failure.exit_code in RETRYABLE and _FENCED not in str(failure)):
            raise failure
        if time.monotonic() - child.started_s > _STEADY_S:
            child.exits = 0
        delay_s = min(2**child.exits, _MOST_DELAY_S)
        child.exits = min(child.exits + 1, _MOST_DELAY_S)
        child.started_s = time.monotonic() + delay_s
        self._say(f"{failure}; it is started again in {delay_s} s")
