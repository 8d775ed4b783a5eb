"""``InsertLoad``: rows that are inserted while servers end and start, and what capture published of them."""

import random
from collections.abc import Callable
from contextlib import suppress

import psycopg

from flushtracker.errors import FlushtrackerError
from flushtracker.local.postgres import LocalPostgres
from tests.support.background import Background
from tests.support.capture_rig import CaptureRig


class InsertLoad(Background):
    """Inserts into ``users`` of whichever server ``server`` returns, in transactions of any size; a context manager."""

    def __init__(self, server: Callable[[], LocalPostgres], seed: int) -> None:
        super().__init__(self._play)
        self._server = server
        self._rng = random.Random(seed)  # noqa: S311  a reproducible load

    def _play(self) -> None:
        while not self.stopping.wait(0.01):
            count = 5_000 if self._rng.random() < 0.02 else self._rng.randrange(1, 5)
            with suppress(FlushtrackerError, psycopg.Error):
                self._server().execute(
                    f"INSERT INTO users (region) SELECT 'eu' FROM generate_series(1, {count})"  # noqa: S608  a number
                )


def published_ids(rig: CaptureRig) -> list[int]:
    """The ids of the rows, in the order in which the shape ``users`` has them."""
    return [int(str(item.value and item.value["id"])) for item in rig.items("users")]


def stored_ids(server: LocalPostgres) -> list[int]:
    """The ids of the rows that the server has, in ascending order."""
    return [number for (number,) in server.execute("SELECT id FROM users ORDER BY id")]


def acknowledge_some(rig: CaptureRig, last_ack: int, rng: random.Random) -> int:
    """Acknowledge something of what was published, as the tracker would once it is durable; returns the last ack."""
    lsns = sorted({event.lsn for event in rig.fragments() if event.lsn > last_ack})
    if not lsns:
        return last_ack
    ack_lsn = rng.choice(lsns)
    rig.acknowledge(ack_lsn)
    return ack_lsn
