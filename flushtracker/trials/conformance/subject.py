"""``Subject``: the writer under test, given as commands: one runs it, the others print what it has stored."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from random import Random
from typing import Final

from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.trials.conformance.simulated_source import WRITER
from flushtracker.trials.power_failure.unsynced_disk import UnsyncedDisk

_LINES_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Commands:
    """The user's commands as given; ``read`` and ``rows`` are ``None`` if their output is not tested.

    ``name`` is the name of the writer that they run.
    """

    writer: str
    dump: str
    read: str | None
    rows: str | None = None
    name: str = WRITER


class Subject:
    """In each command, ``{config}`` and ``{data}`` are replaced by the paths of its configuration and of its folder.

    ``{writer}`` is replaced by its name. The environment has the same values as ``FLUSHTRACKER_CONFIG``,
    ``FLUSHTRACKER_DATA`` and ``FLUSHTRACKER_WRITER``, and the variables of ``env``. With ``disk``, a power failure can
    be simulated: the folder then loses what the writer has not synced.
    """

    def __init__(
        self, commands: Commands, *, config: Path, data: Path, env: Mapping[str, str], disk: UnsyncedDisk | None = None
    ) -> None:
        self._disk = disk
        name = commands.name
        own = {"FLUSHTRACKER_CONFIG": str(config), "FLUSHTRACKER_DATA": str(data), "FLUSHTRACKER_WRITER": name}
        self._env = {**os.environ, **env, **own}
        values = {"{config}": str(config), "{data}": str(data), "{writer}": name}
        arguments = partial(_arguments, values)
        self._writer, self._dump = (arguments(command) for command in (commands.writer, commands.dump))
        self._read, self._rows = (
            None if command is None else arguments(command) for command in (commands.read, commands.rows)
        )
        self._log = data.with_name("writer.log")
        self._process: GuardedProcess | None = None

    def start(self) -> None:
        """Start the writer.

        Raises:
            ConfigError: the command does not exist.
        """
        try:
            self._process = GuardedProcess("the writer", self._watched(self._writer), log=self._log, env=self._env)
        except OSError as error:
            raise _unusable(self._writer, error) from error

    def failure(self) -> FlushtrackerError | None:
        """Return an error if it has exited on its own."""
        return None if self._process is None else self._process.failure()

    def kill(self) -> None:
        """Kill it and all processes that it started; does nothing if it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def lose_power(self, number: int, chance: Random) -> str | None:
        """After a kill, lose what was not synced; returns what is left, as text, or ``None`` if nothing is lost.

        Every third kill loses nothing, like a crash of the writer alone.

        Raises:
            ConfigError: it is unknown what would be lost.
        """
        if self._disk is None or number % 3 == 0:
            return None
        reason = self._disk.not_followed
        if reason is None and not any(self._disk.root.iterdir()):
            reason = "has stored nothing in {data}"
        if reason is not None:
            raise ConfigError(
                f"what a power failure would leave of this writer is unknown, because it {reason}; "
                "leave out --power-loss"
            )
        left = self._disk.root.with_name("left")
        if number % 3 == 1:
            self._disk.leave_synced(left)
        else:
            self._disk.leave_names(left, chance.randrange(1 << 30))
        self._disk.replace(left)
        return "only what was synced" if number % 3 == 1 else "all names, but only contents that were synced"

    def run_for(self, seconds: float) -> None:
        """Let it run for this time, then suspend it until the next call or the kill."""
        if self._process is not None:
            self._process.run_for(seconds)

    def dump(self) -> list[str]:
        """Return the lines that the dump command prints.

        Raises:
            ConfigError: it fails, or takes longer than five minutes.
        """
        return self._lines(self._dump)

    def read(self) -> list[str] | None:
        """Return the lines that the read command prints, or ``None`` without such a command; raises like
        :meth:`dump`.
        """
        return None if self._read is None else self._lines(self._read)

    @property
    def has_rows(self) -> bool:
        return self._rows is not None

    def rows(self) -> list[str]:
        """Return the lines that the rows command prints, none without such a command; raises like :meth:`dump`."""
        return [] if self._rows is None else self._lines(self._rows)

    def _watched(self, command: list[str]) -> list[str]:
        """Wrap the command so that its syncs are seen, also those of a dump, which may complete a transaction."""
        return command if self._disk is None else self._disk.command(command)

    def _lines(self, command: list[str]) -> list[str]:
        try:
            done = subprocess.run(  # noqa: S603  the user's own command
                self._watched(command),
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LINES_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _unusable(command, error) from error
        if done.returncode != 0:
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            raise _unusable(command, f"it exits with {done.returncode}: {last}")
        return [line for line in done.stdout.decode(errors="replace").split("\n") if line.strip()]


def _arguments(values: Mapping[str, str], command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the command {command!r} cannot be split into words: {error}") from error
    return [reduce(lambda text, pair: text.replace(*pair), values.items(), word) for word in words]


def _unusable(command: list[str], reason: object) -> ConfigError:
    return ConfigError(f"the command {shlex.join(command)} cannot be used: {reason}")
