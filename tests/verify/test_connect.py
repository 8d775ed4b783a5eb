"""Kafka Connect with Debezium's JDBC sink as the writer of two shapes, with ``flushtracker up``."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest

from examples.connect.two_stores import SHAPES, TwoStores
from tests.support.processes import run_to_end
from tests.support.seeds import every, seeds

ROOT: Final = Path(__file__).parents[2]
_STEPS: Final = 40
_CLOCKS: Final = {
    "orders": "SELECT amount::numeric::int FROM orders WHERE id = 1",
    "customers": "SELECT version FROM customers WHERE id = 1",
}
_TICK: Final = "UPDATE orders SET amount = {step} WHERE id = 1; UPDATE customers SET version = {step} WHERE id = 1"
_CHANGES: Final = (
    "UPDATE orders SET state = 'draft' WHERE id = {row}",
    "UPDATE orders SET state = 'open', amount = {step} WHERE id = {row}",
    "DELETE FROM orders WHERE id = {row}",
    "INSERT INTO orders VALUES (1000 + {step}, 'open', 1.50, now())",
    "UPDATE customers SET id = 1000 + {step} WHERE id = {row}",
)


@every(3, 2)
def test_example_shows_the_slot_waiting_for_connect() -> None:
    """As its README says; by name, until Connect is back."""
    command = [sys.executable, "-m", "examples.connect.two_stores"]
    done = run_to_end(command, cwd=ROOT, timeout=1000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killing Connect" in done.stdout
    for shape in SHAPES:
        assert re.search(rf"{shape} waits for connect-{shape}: \d+ records, since ", done.stdout), done.stdout
    assert "the slot is not confirmed past the changes; starting Connect again" in done.stdout
    assert done.stdout.endswith(
        "the slot is confirmed past the changes; the store equals the query for orders and customers\n"
    )


@pytest.fixture
def stores(postgres_folder: Path) -> Iterator[TwoStores]:
    made = TwoStores(postgres_folder / "connect")
    try:
        made.start()
        yield made
    finally:
        made.stop()


class ClockJudge:
    """Each step sets a row of each shape to its number; the store's row says which steps it has."""

    def __init__(self, stores: TwoStores) -> None:
        self._stores = stores
        self.ends: list[tuple[int, int]] = []
        """The numbers of steps, and how far the server had written after each."""

    def check(self) -> int:
        """No store lacks a step that the slot has confirmed; returns the last one of those."""
        confirmed_lsn = self._stores.confirmed_lsn()
        due = max((step for step, lsn in self.ends if lsn <= confirmed_lsn), default=0)
        for shape, clock in _CLOCKS.items():
            found = self._stores.stored(clock)
            assert found, f"{shape}: {due} is confirmed, and the store has no clock"
            assert found[0][0] >= due, f"{shape}: step {due} is confirmed, and the store is at {found}"
        return due


def _kill(program: str, config: Path) -> None:
    """Kill a program of ``up``, which starts it again."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_text().split("\0")
            if program in command and str(config) in command:
                os.kill(int(folder.name), signal.SIGKILL)


@every(3, 1)
@pytest.mark.parametrize("seed", seeds(1))
def test_slot_is_never_confirmed_past_the_stores_under_kills(stores: TwoStores, seed: int) -> None:
    """Kills of Connect, ``sink`` and capture. In the end both stores equal their queries.

    Then a truncate that the transform drops: Debezium's sink commits it after a start of Connect.
    """
    rng, judge, kills = Random(seed), ClockJudge(stores), dict.fromkeys(("connect", "sink", "capture"), 0)  # noqa: S311
    stores.execute("UPDATE orders SET amount = 0 WHERE id = 1", "UPDATE customers SET version = 0 WHERE id = 1")
    stores.wait(lambda: all(stores.stored(clock) == [(0,)] for clock in _CLOCKS.values()), "the clocks")
    for step in range(1, _STEPS + 1):
        statements = (_TICK, *rng.sample(_CHANGES, 2))
        stores.execute(*(each.format(step=step, row=rng.randint(2, 100)) for each in statements))
        judge.ends.append((step, stores.written_lsn()))
        judge.check()
        victim = list(kills)[step // 4 % 3]
        if step % 4 == 0:
            kills[victim] += 1
            if victim == "connect":
                stores.connect.kill()
                judge.check()
                stores.connect.start()
                stores.wait(lambda: judge.check() == judge.ends[-1][0], "the slot past this step")
            else:
                _kill(victim, stores.config)
        judge.check()
    assert min(kills.values()) >= 3
    stores.wait(lambda: judge.check() == _STEPS, "the slot past the last step")
    assert [shape for shape in SHAPES if not stores.is_equal(shape)] == []
    stores.execute("TRUNCATE customers", "INSERT INTO customers VALUES (5000, 'after the truncate', 0)")
    written = stores.written_lsn()
    stores.connect.kill()
    stores.connect.start()
    stores.wait(lambda: stores.confirmed_lsn() >= written, "the slot past the truncate")
    assert stores.stored("SELECT name FROM customers WHERE id = 5000") == [("after the truncate",)]
