"""``make soak``: kill the primary of the whole loop repeatedly, at any moment under load, and promote its standby.

Primary, standby, broker, capture, tracker and writers are processes, as in production. SIGKILL ends the primary, and
the standby is promoted, to which the slots are synchronised and for which the primary waits. The one that was killed
becomes the next standby: rewound, or from a base backup. The moments of the kills:

- ``any``: some time after the standby's copies of the slots would survive a promotion;
- ``at once``: as soon as they would;
- ``syncing``: perhaps before, while they are made. If so, the primary starts again, as nobody may promote then;
- ``large``: while a transaction of 100,000 rows is open, or has just been committed;
- ``twice``: the new primary is killed as well, before or after capture has reached it, and starts again.

Capture, tracker and writers are killed beside: with the primary, or some time before.

What must hold at every moment, and at rest after every tenth promotion, is that of :mod:`tests.support.loop_watch`: no
ack is less than the one before; the slot, on whichever server, is not past the last ack; all that it has confirmed is
in the shape log, once, and nothing else is; and every fold gives its query. What was committed is what the primary has
given to a slot with ``test_decoding``, for which it waits for the standby, too. Followers read all along, and get no
change that cannot follow.

``python -m tests.integration.soak_failover [--promotions 100] [--seed N]`` prints one line per promotion, and one for
the result. A seed repeats the workload and what is killed, not the moments.
"""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final, Literal, get_args

from tests.support.failover_loop import FailoverLoop
from tests.support.loop_readers import LoopReaders
from tests.support.loop_watch import LoopWatch
from tests.support.loop_workload import LoopWorkload
from tests.support.seeded_soak import main, report
from tests.support.whole_loop import Part

Moment = Literal["any", "at once", "syncing", "large", "twice"]

_MOMENTS: Final[tuple[Moment, ...]] = get_args(Moment)
_BESIDE: Final[tuple[Part, ...]] = ("capture", "tracker", "writers")
_REST_EVERY: Final = 10
_LONGEST_DELAY_S: Final = 2.0
_BACKUP_CHANCE: Final = 0.25
_KILL_CHANCE: Final = 0.25
"""The probability that capture, the tracker or the writers are killed before the primary is."""
_CAPTURE_CHANCE: Final = 0.2
"""The probability that capture is killed with the primary."""


def _soak(folder: Path, promotions: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  reproducible choices
    settings = {"flush": rng.choice(["batch", "hold"]), "write_unit": rng.choice(["txn", "txn_fragment"])}
    started, reads = time.monotonic(), Counter[str]()
    loop = FailoverLoop(folder, **settings)
    with loop:
        watch = LoopWatch(loop)
        play = Promotions(loop, watch, rng)
        report(started, f"seed={seed} {settings}")
        while play.count < promotions:
            seed_of_rest = rng.randrange(1 << 30)
            with (
                LoopReaders(loop.log, watch.source, seed_of_rest) as readers,
                LoopWorkload(lambda: loop.server, seed_of_rest) as workload,
            ):
                for _ in range(min(_REST_EVERY, promotions - play.count)):
                    what = play.next()
                    readers.raise_failure()
                    report(started, f"promotion={play.count} {what} {watch.counts()}")
            if workload.failure is not None:
                raise workload.failure
            outcome = watch.rest()
            readers.raise_failure()
            readers.check_followers()
            reads.update(readers.reads)
            report(started, f"at rest: {outcome} {watch.counts()} reads={dict(reads)} restarts={readers.restarts}")
        watch.close()
        assert watch.checked == loop.truth.transactions > promotions
        assert watch.trace.confirming > promotions
        assert watch.horizons or promotions < _REST_EVERY, "no log was folded"
    counts = f"{dict(play.done)} seed={seed} {watch.counts()}"
    report(started, f"promotions={promotions} {counts}: nothing lost, nothing confirmed early")


class Promotions:
    """One promotion after the other; ``done`` counts what was killed, when, and how it came back."""

    def __init__(self, loop: FailoverLoop, watch: LoopWatch, rng: random.Random) -> None:
        self._loop = loop
        self._pair = loop.pair
        self._watch = watch
        self._rng = rng
        self.count = 0
        self.done = Counter[str]()

    def next(self) -> str:
        """Give the primary a standby, kill the primary, and promote the standby; returns what was done, in words."""
        moment = self._rng.choice(_MOMENTS)
        done = [moment, self._add_standby(), *self._reach(moment)]
        if is_with_capture := self._rng.random() < _CAPTURE_CHANCE:
            done.append("capture with it")
            self._loop.end("capture")
        self._loop.fail_over()
        self.count += 1
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
            self._loop.start_large_transaction()
        self._sample()
        return done

    def _sample(self) -> None:
        self._watch.sample_for(self._rng.uniform(0, _LONGEST_DELAY_S))

    def _add_standby(self) -> str:
        if self.count == 0 or self._rng.random() < _BACKUP_CHANCE:
            self._pair.add_standby()
            return "backup"
        self._pair.rejoin()
        return "rewind"

    def _kill_beside(self) -> str:
        """Kill one of the other parts; capture must have claimed the source again before the primary is killed."""
        part = self._rng.choice(_BESIDE)
        self._loop.kill(part)
        if part == "capture":
            self._watch.await_lsn(self._watch.confirmed_lsn + 1)
            self._pair.wait_until_synced(self._watch.sample)
        return part


if __name__ == "__main__":
    main(__doc__, "promotions", _soak)
