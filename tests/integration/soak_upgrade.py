"""``make soak FROM=…``: replace each program of the whole loop by that of another release, under load, and back.

The release before is a commit, of which a wheel is built. All programs begin with it. Then,
each stopped by SIGTERM, and the next one only when the slot has passed all that was written by then:

1. each is replaced by this checkout's, in the order of docs/upgrading.md;
2. each is replaced by the release before, in reverse order: it continues, or it ends and says why, and stays replaced;
3. each is replaced by this checkout's, in reverse order;
4. each is started again, for the time that this takes;
5. if there are shapes that the release before does not know, they are defined, and each is replaced by it as in 2.

All the time :mod:`tests.support.loop_watch` judges slot, acks and shape log, as in ``soak_loop``: nothing lost, nothing
confirmed early. Followers go on from one release's positions with the other release, and browsers with the handles and
offsets that they have; nobody may begin again because of the upgrade. After each replacement a shape is defined, which
gets its snapshot from the programs of both releases as they are then; by the seed, from a program of its own. A stop is
the longest time without a new ack; of the server, without an answer.

``python -m tests.integration.soak_upgrade --from v0.1.0 [--seed N]``.
"""

import argparse
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.tracking.acks.ack_reader import read_ack_history
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import shape
from tests.support.installed_release import CHECKOUT, Release, release_of
from tests.support.log_follower import Follower, row_texts
from tests.support.loop import Loop
from tests.support.loop_settings import Program
from tests.support.loop_watch import LoopWatch
from tests.support.loop_workload import MIXED
from tests.support.seeded_soak import report
from tests.support.upgrade_readers import HttpFollower, longest_gap, poll_with
from tests.support.waiting import wait_until

_FOLLOWED: Final = ("orders-23", "audit")
"""Shapes whose history is kept, so that nobody is told to begin again."""
_ORDER: Final[tuple[Program, ...]] = ("serve", "writers", "snapshots", "tracker", "capture")
"""In which docs/upgrading.md replaces the programs."""
_RESTART: Final = "restart"
_LATER: Final = "downgrade with later shapes"
_LOAD_S: Final = 5.0
_TIMEOUT_S: Final = 120
_TIMES: Final = 2
_SLACK_S: Final = 5.0
"""A stop may take that many times as long as a restart, and this long more: the machine has other things to do."""


@dataclass(frozen=True)
class Stop:
    """How long a program's replacement has held up acks or answers, and why it was refused, if it was."""

    part: str
    program: str
    seconds: float
    refusal: str | None


class UpgradeRun:
    """A context manager that replaces the programs of a loop, part by part; ``stops`` has what that took."""

    def __init__(self, loop: Loop, old: Release, url: str, seed: int) -> None:
        self.stops: list[Stop] = []
        self._loop, self._old, self._url = loop, old, url
        self._watch = LoopWatch(loop)
        self._rng = random.Random(seed)  # noqa: S311  reproducible
        self._positions = [Follower(str(loop.log), shape_id=shape_id) for shape_id in _FOLLOWED]
        self._browsers: list[HttpFollower] = []
        self._stack = ExitStack()
        self._stack.callback(self._watch.close)
        self._started = time.monotonic()

    def __enter__(self) -> "UpgradeRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, part: str, release: Release, order: Sequence[str]) -> None:
        """Replace the programs one after the other, each by that of the release."""
        first = len(self.stops)
        # Of a shape that it does not know, the release before refuses the registry.
        readers = (CHECKOUT,) if part == _LATER else (self._old, CHECKOUT)
        with self._loop.workload(self._rng.randrange(1 << 30)):
            self._follow_over_http()
            self._await_progress()
            self._watch.sample_for(_LOAD_S)
            for name in order:
                self.stops.append(self._replace(part, name, release))
                report(self._started, f"{self.stops[-1]} {self._watch.counts()}")
                for follower in self._positions:
                    poll_with(follower, readers)
        outcome = self._watch.rest()
        self._check_followers()
        report(self._started, f"{part}: {outcome}; {len(self.stops) - first} replaced")

    def await_snapshots(self) -> None:
        """Wait until the shapes that were defined while it runs have the rows that their tables had then."""
        for each in self._loop.defined[len(self._loop.content.shapes) :]:
            self._loop.await_snapshot(each["id"])

    def _replace(self, part: str, name: str, release: Release) -> Stop:
        begin, has_run = time.time(), self._loop.has(name)
        self._loop.replace(name, release)
        self._follow_over_http()
        refusals = self._through_refusals(self._await_progress)
        end = time.time()
        self._loop.define(shape(f"another-{len(self._loop.defined)}", "public.users", where="id > 20"))
        refusals += self._through_refusals(self.await_snapshots)
        refusals += self._through_refusals(lambda: self._watch.sample_for(_LOAD_S))
        seconds = self._stopped_s(name, begin, end) if has_run else 0.0
        return Stop(part, name, seconds, "; ".join(refusals) or None)

    def _await_progress(self) -> None:
        """Wait until what is written now is confirmed, and clients have got answers."""
        since = time.time()
        ((end,),) = self._loop.server.execute("SELECT pg_current_wal_insert_lsn()::text")
        self._watch.await_lsn(parse_lsn(end))
        wait_until(lambda: self._have_answers(since), "answers over HTTP", _TIMEOUT_S)

    def _through_refusals(self, wait: Callable[[], None]) -> list[str]:
        """Call ``wait``, and again after each refusal to go on, whose program is replaced; returns what they say."""
        try:
            wait()
        except FlushtrackerError:
            failures = self._loop.take_failures()
            for name, failure in failures.items():
                assert self._loop.releases[name] is not CHECKOUT, f"{name} cannot go on: {failure}"
                self._loop.replace(name, CHECKOUT)
            assert failures
            return [*map(str, failures.values()), *self._through_refusals(wait)]
        return []

    def _have_answers(self, since: float) -> bool:
        self._loop.raise_failure()
        for browser in self._browsers:
            browser.raise_failure()
        served = self._browsers if self._loop.has("serve") else []
        return all(browser.answered and browser.answered[-1] > since for browser in served)

    def _stopped_s(self, name: str, begin: float, end: float) -> float:
        if name == "serve":
            return max((longest_gap(browser.answered, begin, end) for browser in self._browsers), default=0)
        # The first one after the end, too.
        acks = read_ack_history(str(self._loop.rig.acks)).acks
        return longest_gap([ack.acked_at.timestamp() for ack in acks], begin, end)

    def _follow_over_http(self) -> None:
        """Let browsers follow from now on, if there is a server for the first time."""
        if self._loop.has("serve") and not self._browsers:
            self._browsers = [HttpFollower(self._url, shape_id) for shape_id in _FOLLOWED]
            for browser in self._browsers:
                self._stack.enter_context(browser)

    def _check_followers(self) -> None:
        """At rest: each has the shape's rows, and was never told to begin again."""
        expected = {
            shape_id: row_texts(read_shape(str(self._loop.log), shape_id).rows.to_pylist()) for shape_id in _FOLLOWED
        }
        for follower in self._positions:
            poll_with(follower, (CHECKOUT,))
            assert follower.restarts == 0, f"a follower of {follower.shape_id} was told to begin again"
            found = row_texts(filter(None, follower.table.values()))
            assert found == expected[follower.shape_id], f"a follower of {follower.shape_id} has other rows"
        for browser in self._browsers if self._loop.has("serve") else ():
            browser.await_rows(expected[browser.shape_id])


def check_stops(stops: Sequence[Stop]) -> None:
    """No replacement holds anything up for longer than a restart, and capture refuses shapes that it does not know."""
    restarts = {stop.program: stop.seconds for stop in stops if stop.part == _RESTART}
    for stop in stops:
        most_s = _TIMES * restarts[stop.program] + _SLACK_S
        assert stop.refusal or stop.seconds <= most_s, (
            f"{stop} is longer than a restart, {restarts[stop.program]:.1f} s"
        )
        assert stop.refusal or (stop.part, stop.program) != (_LATER, "capture"), f"{stop} has shapes of a newer release"


def soak(folder: Path, revision: str, seed: int) -> None:
    """Upgrade from the commit, go back, and upgrade again."""
    rng = random.Random(seed)  # noqa: S311  reproducible
    writing = {"flush": rng.choice(["batch", "hold"]), "write_unit": rng.choice(["txn", "txn_fragment"])}
    old, listen = release_of(revision, folder / "before"), f"127.0.0.1:{_own_port()}"
    order = [name for name in _ORDER if name != "snapshots" or rng.random() < 0.5]
    known = [shape for shape in MIXED.shapes if not shape.inner or old.has("shapes/where/subqueries.py")]
    with ExitStack() as stack:
        loop = Loop(
            folder / "loop",
            replace(MIXED, shapes=known),
            programs=[name for name in order[::-1] if name != "serve" or old.has("serve")],
            release=old,
            settings={"write": writing, "serve": {"listen": listen}},
        )
        stack.enter_context(loop)
        run = stack.enter_context(UpgradeRun(loop, old, f"http://{listen}/v1/shape", seed))
        run.play("upgrade", CHECKOUT, order)
        run.play("downgrade", old, order[::-1])
        run.play("upgrade in reverse", CHECKOUT, order[::-1])
        run.play(_RESTART, CHECKOUT, order)
        if later := [shape.definition for shape in MIXED.shapes if shape not in known]:
            loop.define(*later)
            run.await_snapshots()
            run.play(_LATER, old, order[::-1])
    for stop in run.stops:
        refusal = f": {stop.refusal}" if stop.refusal else ""
        report(time.monotonic(), f"{stop.part}, {stop.program}: {stop.seconds:.1f} s{refusal}")
    check_stops(run.stops)


def _own_port() -> int:
    """A free port that is given to nobody who asks for any: clients call it while there is no server, for minutes."""
    for port in range(20_000, 30_000):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


def main() -> None:
    """Run it in a new folder, which is kept after a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="revision", required=True, help="a commit or tag: the release before")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flushtracker-"))
    folder.chmod(0o755)
    try:
        soak(folder, arguments.revision, arguments.seed)
    except (AssertionError, FlushtrackerError) as error:
        sys.exit(f"violated with seed {arguments.seed}; all data and logs are in {folder}: {error}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
