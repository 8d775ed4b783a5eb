"""Readers of the shape log while the whole loop runs: DuckDB, Polars, and followers of ours.

What DuckDB and Polars read of a version must be what ``read_shape`` has of it. Each change that a follower reads must
be able to follow the one before, and when the loop is at rest, a follower has what ``read_shape`` has.
"""

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from flushtracker.delta.log.reader import read_shape
from flushtracker.errors import ConfigError
from tests.support.background import Background
from tests.support.foreign_readers import ForeignReader, duckdb_rows, folded_rows, joined, polars_rows
from tests.support.log_follower import Follower, row_texts
from tests.support.loop_workload import JOINED, SHAPES
from tests.support.truth import Row

_COLUMNS: Final = {"orders": "note", "users": "note", "audit": "said"}
_LONGEST_PAUSE_S: Final = 1.0
_JOINED_TABLES: Final = {"users": '"public"."orders"', "offices": '"public"."users"'}
"""Of the shape with a subquery, by the names that docs/shape_log.md has for them."""


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
        """Of each its reader of a shape, and of a shape with a subquery."""
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
