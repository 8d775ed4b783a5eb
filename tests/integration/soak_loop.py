"""``make soak``: kill parts of the whole loop, or promote its standby, again and again at random moments under load.

Servers, broker, capture, tracker and writers are processes, as in production. Meanwhile the slot's
``confirmed_flush_lsn`` is read again and again, and after it the shape log, which must have every transaction that the
slot has confirmed: in each shape that it concerns, with all of its items and its ``commit`` row. Which these are is
read from the server's WAL, with ``test_decoding`` on a slot of its own. No ack may be less than the one before, and the
slot, on whichever server, may not be past the last.

The history of some shapes is folded after two seconds: of these, the transactions after the horizon must be there.

After every tenth fault the workload pauses. Then the slot must reach the end of the WAL, no row may be in the log
twice, folding each log must give the shape's query, and every decision so far must be one that the models allow
(:mod:`tests.support.loop_trace`, :mod:`tests.support.log_trace`).

DuckDB, Polars and followers of ours read the shapes all the time, must have what ``read_shape`` has, and get no change
that cannot follow. Clients of HTTP servers, two of which have a tail, get no change twice, and keep what they have been
shown.

- ``--kills 100``: SIGKILL ends a part, the two Spark drivers most often, and it is started again at once.
- ``--kills-on-s3 100``: with tables and checkpoints on a server with the API of S3. The programs and the followers find
  it by the environment's credentials. The checks and the other readers read the files in which it keeps its objects.
- ``--promotions 100``: SIGKILL ends the primary, and the standby is promoted, to which the slots are synchronised and
  for which the primary waits. :mod:`tests.support.promotions` has the moments.

``python -m tests.integration.soak_loop --kills 100 [--seed N]`` prints one line per fault, and one for the result. A
seed repeats the workload and what is killed, not the moments.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from deltalake import DeltaTable

from flushtracker.errors import ConfigError
from flushtracker.shape_log.table.reader import read_shape
from tests.support.background import Background
from tests.support.failover_pair import FailoverPair
from tests.support.foreign_readers import ForeignReader, duckdb_rows, folded_rows, joined, polars_rows
from tests.support.log_follower import Follower, row_texts
from tests.support.loop import Loop, Part
from tests.support.loop_clients import LoopClients
from tests.support.loop_watch import LoopWatch
from tests.support.loop_workload import JOINED, SHAPES
from tests.support.object_store import store_options
from tests.support.promotions import Promotions
from tests.support.s3_server import S3Server, running_s3
from tests.support.seeded_soak import main, report
from tests.support.truth import Row

_COLUMNS: Final = {"orders": "note", "users": "note", "audit": "said"}
_LONGEST_PAUSE_S: Final = 1.0
_JOINED_TABLES: Final = {"users": '"public"."orders"', "offices": '"public"."users"'}
"""The tables of the shape with a subquery, by the names that docs/shape_log.md gives them."""


class LoopReaders(Background):
    """A context manager in which a thread reads; ``reads`` counts them.

    The followers read the log at ``uri``, if there is one, and the others its files.
    """

    def __init__(self, log: Path, source: str, seed: int, uri: str | None = None) -> None:
        super().__init__(self._play)
        self.reads = Counter[str]()
        self._log = str(log)
        self._uri = uri or self._log
        self._rng = random.Random(seed)  # noqa: S311  reproducible
        self._foreign: dict[str, tuple[ForeignReader, ForeignReader]] = {}
        """For each, its reader of a shape, and of a shape with a subquery."""
        for name, read, word in (("duckdb", duckdb_rows, "TYPE delta"), ("polars", polars_rows, "import polars")):
            text = joined(word, _JOINED_TABLES)
            self._foreign[name] = (partial(read, source=source), partial(read, source=source, program=text))
        self._followers = list[Follower]()

    @property
    def restarts(self) -> int:
        """How often a follower was told to begin again."""
        return sum(follower.restarts for follower in self._followers)

    def check_followers(self) -> None:
        """With the thread stopped and the loop at rest: each follower has the shape's rows."""
        for follower in self._followers:
            follower.poll()
            found = list(_rows_of(follower))
            expected = read_shape(self._log, follower.shape_id).rows.to_pylist()
            assert row_texts(found) == row_texts(expected), f"a follower of {follower.shape_id} has other rows"

    def _play(self) -> None:
        while not self.stopping.wait(self._rng.uniform(0, _LONGEST_PAUSE_S)):
            if self._followers:
                self._read()
            elif DeltaTable.is_deltatable(self._log):
                self._followers = [Follower(self._uri, n % 2 == 0, shape.id) for n, shape in enumerate(SHAPES)]

    def _read(self) -> None:
        follower = self._rng.choice(self._followers)
        try:
            follower.poll()
        except ConfigError:
            return  # The shape has no rows yet.
        self.reads["followers"] += 1
        shape_id, (name, readers) = follower.shape_id, self._rng.choice([*self._foreign.items()])
        reader, shapes = readers[shape_id == JOINED.id], f"{self._log}_shapes" if shape_id == JOINED.id else None
        version, column = DeltaTable(self._log).version(), _COLUMNS[shape_id.partition("-")[0]]
        rows = reader(self._log, version, shape_id, column)
        expected = folded_rows(self._log, version, shape_id, column, shapes)
        assert rows == expected, f"{name} of {shape_id} at version {version}"
        self.reads[name] += 1


def _rows_of(follower: Follower) -> Iterator[Row]:
    """The rows of the shape, of all that the follower has."""
    if follower.shape_id != JOINED.id:
        yield from filter(None, follower.table.values())
        return
    orders, users = (f"{_JOINED_TABLES[name]}/" for name in ("users", "offices"))
    notes = {row.get("note") for key, row in follower.table.items() if key.startswith(users)} - {None}
    for key, row in follower.table.items():
        if key.startswith(orders) and row.get("note") in notes:
            yield row


_WEIGHTS: Final[dict[Part, int]] = {"tracker": 3, "writers": 3, "capture": 2, "broker": 1, "server": 1}
_PROGRESS_CHANCE: Final = 0.6
"""The probability that a kill waits until the slot has advanced since the last one; other kills may be in a start."""
_LONGEST_DELAY_S: Final = 8.0
_REST_EVERY: Final = 10


class Faults(Protocol):
    """What is done to the loop; ``done`` counts it."""

    done: Counter[str]

    def next(self) -> str:
        """Wait for a moment, and let the next fault happen; returns what was done, in words."""


class Kills:
    """Kills of any part."""

    def __init__(self, loop: Loop, watch: LoopWatch, rng: random.Random) -> None:
        self._loop, self._watch, self._rng = loop, watch, rng
        self.done = Counter[str]()

    def next(self) -> str:
        if self._rng.random() < _PROGRESS_CHANCE:
            self._watch.await_lsn(self._watch.confirmed_lsn + 1)
        self._watch.sample_for(self._rng.uniform(0, _LONGEST_DELAY_S))
        (part,) = self._rng.choices([*_WEIGHTS], [*_WEIGHTS.values()])
        self._loop.kill(part)
        self.done[part] += 1
        return part


def _soak(
    folder: Path,
    count: int,
    seed: int,
    faults: Callable[[Loop, LoopWatch, random.Random], Faults] = Kills,
    pair: FailoverPair | None = None,
    store: S3Server | None = None,
) -> None:
    """Let so many faults happen."""
    rng = random.Random(seed)  # noqa: S311  reproducible choices
    writing = {"flush": rng.choice(["batch", "hold"]), "write_unit": rng.choice(["txn", "txn_fragment"])}
    started, number, reads = time.monotonic(), 0, Counter[str]()
    with Loop(folder, servers=pair, store=store, settings={"write": writing}) as loop:
        watch = LoopWatch(loop)
        play = faults(loop, watch, rng)
        report(started, f"seed={seed} {writing}")
        while number < count:
            seed_of_rest = rng.randrange(1 << 30)
            clients = LoopClients(loop, seed_of_rest)
            with clients:
                with (
                    LoopReaders(loop.log, watch.source, seed_of_rest, f"{loop.place}/log") as readers,
                    loop.workload(seed_of_rest),
                ):
                    for _ in range(min(_REST_EVERY, count - number)):
                        number, what = number + 1, play.next()
                        readers.raise_failure()
                        clients.raise_failure()
                        report(started, f"fault={number} {what} {watch.counts()} ahead={clients.ahead}")
                outcome = watch.rest()
                clients.await_rows()
            readers.check_followers()
            reads.update(readers.reads)
            report(started, f"at rest: {outcome} {watch.counts()} reads={dict(reads)} restarts={readers.restarts}")
        watch.close()
        assert watch.checked == loop.truth.transactions > count
        assert watch.trace.confirming > count
        assert watch.horizons or count < _REST_EVERY, "no log was folded"
        assert min(reads[name] for name in ("followers", "duckdb", "polars")) > 0
    counts = f"{dict(play.done)} seed={seed} {watch.counts()}"
    report(started, f"faults={count} {counts}: nothing lost, nothing confirmed early")


def _on_s3(folder: Path, kills: int, seed: int) -> None:
    with running_s3(folder / "store") as store:
        os.environ.update(store_options(store.port))
        _soak(folder, kills, seed, store=store)


def _promotions(folder: Path, promotions: int, seed: int) -> None:
    _soak(folder, promotions, seed, Promotions, FailoverPair(folder / "servers"))


if __name__ == "__main__":
    main(__doc__, {"kills": _soak, "kills-on-s3": _on_s3, "promotions": _promotions})
