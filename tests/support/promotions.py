"""``Promotions``: the primary of the whole loop is killed at any moment under load, and its standby promoted.

The one that was killed becomes the next standby: rewound, or from a base backup. The moments of the kills:

- ``any``: some time after the standby's copies of the slots would survive a promotion;
- ``at once``: as soon as they would;
- ``syncing``: perhaps before, while they are made. If so, the primary starts again, as nobody may promote then;
- ``large``: while a transaction of 100,000 rows is open, or has just been committed;
- ``twice``: the new primary is killed as well, before or after capture has reached it, and starts again.

Capture, tracker and writers are killed beside: with the primary, or some time before. What was committed is what the
primary has given to a slot with ``test_decoding``, for which it waits for the standby, too.
"""

import random
from collections import Counter
from contextlib import suppress
from threading import Thread
from typing import Final, Literal, get_args

import psycopg

from flushtracker.errors import PostgresError
from tests.support.capture_rig import run_in_transaction
from tests.support.loop import Loop, Part
from tests.support.loop_watch import LoopWatch

Moment = Literal["any", "at once", "syncing", "large", "twice"]

_MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)
_BESIDE: Final[tuple[Part, ...]] = ("capture", "tracker", "writers")
_INSERT_MANY: Final = "INSERT INTO audit (said) SELECT 'large' FROM generate_series(1, 10000)"
_LONGEST_DELAY_S: Final = 2.0
_BACKUP_CHANCE: Final = 0.25
_KILL_CHANCE: Final = 0.25
"""The probability that capture, the tracker or the writers are killed before the primary is."""
_CAPTURE_CHANCE: Final = 0.2
"""The probability that capture is killed with the primary."""


class Promotions:
    """One promotion after the other; ``done`` counts what was killed, when, and how it came back."""

    def __init__(self, loop: Loop, watch: LoopWatch, rng: random.Random) -> None:
        assert loop.pair is not None
        self._loop, self._pair, self._watch, self._rng = loop, loop.pair, watch, rng
        self._count = 0
        self.done = Counter[str]()

    def next(self) -> str:
        """Give the primary a standby, kill the primary, and promote the standby; returns what was done, in words."""
        moment = self._rng.choice(_MOMENTS)
        done = [moment, self._add_standby(), *self._reach(moment)]
        if is_with_capture := self._rng.random() < _CAPTURE_CHANCE:
            done.append("capture with it")
            self._loop.end("capture")
        self._loop.fail_over()
        self._count += 1
        if is_with_capture:
            self._loop.start("capture")
        if moment == "twice":
            self._sample()
            self._loop.kill("server")
        self._watch.sample()
        self.done.update(done)
        return ", ".join(done)

    def _reach(self, moment: Moment) -> list[str]:
        """Let everything go on up to the moment of the kill; returns what was done meanwhile."""
        done = []
        if moment == "syncing":
            self._sample()
            self._loop.server.kill()
            if self._pair.is_promotable():
                return ["promotable"]
            self._loop.server.start()
            done.append("not promotable")
        self._pair.wait_until_synced(self._watch.sample)
        if moment in {"syncing", "at once"}:
            return done
        if self._rng.random() < _KILL_CHANCE:
            done.append(self._kill_beside())
        if moment == "large":
            self._start_large_transaction()
        self._sample()
        return done

    def _sample(self) -> None:
        self._watch.sample_for(self._rng.uniform(0, _LONGEST_DELAY_S))

    def _add_standby(self) -> str:
        if self._count == 0 or self._rng.random() < _BACKUP_CHANCE:
            self._pair.add_standby()
            return "backup"
        self._pair.rejoin()
        return "rewind"

    def _start_large_transaction(self) -> None:
        """Begin a transaction of a hundred thousand rows, which commits if the primary lives long enough."""
        server = self._loop.server

        def run() -> None:
            with suppress(psycopg.Error, PostgresError):
                run_in_transaction(server, [_INSERT_MANY] * 10)

        Thread(target=run, daemon=True).start()

    def _kill_beside(self) -> str:
        """Kill one of the other parts; capture must have claimed the source again before the primary is killed."""
        part = self._rng.choice(_BESIDE)
        self._loop.kill(part)
        if part == "capture":
            self._watch.await_lsn(self._watch.confirmed_lsn + 1)
            self._pair.wait_until_synced(self._watch.sample)
        return part
