"""What is left of the tables after a power failure, at random moments of a program that writes them."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from flushtracker.trials.power_failure.unsynced_disk import UnsyncedDisk
from tests.support.durable_writes import there
from tests.support.seeds import seeds
from tests.support.waiting import wait_until

_FAILURES: Final = 12


class Run:
    """A process of ``tests.support.durable_writes`` on a disk that loses what was not synced."""

    def __init__(self, folder: Path, **environment: str) -> None:
        (folder / "disk").mkdir()
        self.disk = UnsyncedDisk(folder / "disk", folder / "synced")
        self._printed = folder / "printed"
        command = [sys.executable, "-m", "tests.support.durable_writes", str(self.disk.root)]
        with self._printed.open("w") as printed:
            self.process = subprocess.Popen(
                self.disk.command(command), env={**os.environ, **environment}, stdout=printed
            )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.disk.close()

    def confirmed(self) -> dict[str, set[str]]:
        """What the process has printed, by table."""
        found: dict[str, set[str]] = {"log": set(), "acks": set(), "shapes": set()}
        for line in self._printed.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                table, what = line.split()
                found[table].add(what)
        return found

    def failures(self, count: int, seed: int) -> list[str]:
        """Stop the process at random moments; what has been confirmed and is not there after a power failure then."""
        chance, lost = random.Random(seed), list[str]()  # noqa: S311  reproducible pauses
        wait_until(lambda: self.confirmed()["shapes"], "the first row of each table", 60)
        for number in range(count):
            before = len(self.confirmed()["shapes"])
            wait_until(lambda: len(self.confirmed()["shapes"]) > before, "another row of each table", 60)  # noqa: B023
            time.sleep(chance.uniform(0, 0.2))
            os.kill(self.process.pid, signal.SIGSTOP)
            os.waitpid(self.process.pid, os.WUNTRACED)
            confirmed = self.confirmed()
            left = self.disk.root.parent / f"left_{number}"
            self.disk.leave_synced(left)
            lost += _lost(f"failure {number}, only what was synced", confirmed, left)
            left = self.disk.root.parent / f"left_{number}_names"
            self.disk.leave_names(left, chance.randrange(1 << 30))
            lost += _lost(f"failure {number}, all names", confirmed, left)
            os.kill(self.process.pid, signal.SIGCONT)
        return lost


def _lost(place: str, confirmed: dict[str, set[str]], left: Path) -> list[str]:
    try:
        found = there(left)
    except Exception as error:  # noqa: BLE001  a table that cannot be opened has lost everything
        return [f"{place}: {error}"]
    return [f"{place}: {table} {what}" for table, rows in confirmed.items() for what in sorted(rows - found[table])]


@pytest.mark.parametrize("seed", seeds(1, further=1))
def test_what_is_confirmed_survives_a_power_failure(tmp_path: Path, seed: int) -> None:
    """At any moment, while tables are merged, checkpointed and vacuumed as often as can be."""
    run = Run(tmp_path)
    try:
        assert run.failures(_FAILURES, seed) == []
    finally:
        run.close()


def test_power_failure_takes_what_is_not_synced(tmp_path: Path) -> None:
    """The same program without a sync: rows of each table are lost, so the test above can fail."""
    run = Run(tmp_path, UNSYNCED="yes")
    try:
        lost = run.failures(3, seed=1)
    finally:
        run.close()
    assert any("only what was synced: log 1000" in line for line in lost)
    assert any("only what was synced: acks 1" in line for line in lost)
    assert any("all names" in line for line in lost)
