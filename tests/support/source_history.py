"""``SourceHistory``: what can happen to a source and its shapes, at random, from a seed; and what must hold after each.

After each event, which comes with changes that it may lose, PostgreSQL answers the query of each shape. Its rows must
be what a reader of the log has, and what the followers have: one that has read all along, and one that reads seldom.
They begin before the first event, keep their positions, and are never told to begin again. Whatever they read must be
able to follow: no insert of a key that is there, and no update or delete of one that is not.

So must clients of HTTP servers, some of which show changes before the log has them. What a client was shown is never
taken back, unless its shape or source has ended, and nothing comes twice.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from flushtracker.config.serve_config import TailConfig
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeEndedError, SlotError, SnapshotMissingError
from flushtracker.events.registry_events import ShapeEntry, parse_registry_entry
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.shape_log.table.reader import ShapeLogReader, read_shape
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.capture_rig import run_in_transaction, shape
from tests.support.local_loop import LocalLoop
from tests.support.log_follower import Follower, fold_strictly, row_texts
from tests.support.snapshot_world import Table
from tests.support.tail_readers import TailReaders
from tests.support.waiting import wait_until

TABLES: Final = (
    "CREATE TABLE items (id int PRIMARY KEY, grp int NOT NULL, note text)",
    "ALTER TABLE items REPLICA IDENTITY FULL",
    "CREATE TABLE users (id int PRIMARY KEY, grp int NOT NULL, note text)",
    "INSERT INTO items SELECT n, n % 4, 'first' FROM generate_series(1, 40) n",
    "INSERT INTO users SELECT n, n % 4, 'first' FROM generate_series(1, 40) n",
)
_SHAPES: Final[dict[str, Any]] = {
    "items": {"table": "public.items"},
    "some items": {"table": "public.items", "where": "grp < 2"},
    "users": {"table": "public.users", "columns": ["id", "note"]},
}
_STATEMENTS: Final = (
    "INSERT INTO {table} VALUES ({id}, {grp}, 'new') ON CONFLICT (id) DO UPDATE SET note = {table}.note || '.'",
    "UPDATE {table} SET grp = {grp} WHERE id % 5 = {grp}",
    "UPDATE {table} SET id = {id} WHERE id = {other} AND NOT EXISTS (SELECT FROM {table} WHERE id = {id})",
    "UPDATE {table} SET note = NULL WHERE id = {id}",
    "DELETE FROM {table} WHERE id = {id}",
    "DELETE FROM {table} WHERE id % 7 = {grp}",
    "TRUNCATE {table}",
)
_WEIGHTS: Final = (5, 3, 2, 2, 3, 1, 0.3)
_DEADLINE_S: Final = 90
_PAUSE_S: Final = 0.1


class SourceHistory:
    """Begins when all shapes can be read; ``folder`` is for the copies of the server. ``counts`` has the events."""

    def __init__(self, loop: LocalLoop, folder: Path, seed: int) -> None:
        self._loop, self._rig, self._folder = loop, loop.rig, folder
        self._rng = random.Random(seed)  # noqa: S311  reproducible
        self.counts = Counter[str]()
        self._epochs = 0
        """How many sources have followed the first."""
        self._incarnations = dict.fromkeys(_SHAPES, 1)
        self._backups = list[LocalPostgres]()
        self._define()
        loop.start()
        log = str(loop.log)
        self._followers = [Follower(log, shape_id=shape_id) for shape_id in _SHAPES]
        self._seldom = [Follower(log, short_lived=True, shape_id=shape_id) for shape_id in _SHAPES]
        kafka = self._rig.config.kafka
        tail = TailConfig(kafka.bootstrap_servers, kafka.topics.shape_changes)
        self.readers = TailReaders(log, tail, [*_SHAPES], seed)
        self.settle()
        self._poll_seldom()

    def play(self, events: int) -> None:
        """Let so many events happen; each ends with all shapes as their queries."""
        actions: dict[Callable[[], None], float] = {
            self.lose_slot: 2,
            self.back_up: 2,
            self.evict: 2,
            self.resync: 1,
            self.end_shape: 1,
            self.take_again: 1,
            self.restart_capture: 1,
        }
        for _ in range(events):
            possible = actions | ({self.restore: 3} if self._backups else {})
            (action,) = self._rng.choices([*possible], [*possible.values()])
            self.change()
            action()
            self.counts[action.__name__] += 1
            self.settle()
            if self._rng.random() < 0.3:
                self._poll_seldom()
        self.finish()

    def finish(self) -> None:
        """Followers have the rows of the last change, too, and the log of each source is whole."""
        self.change()
        self.settle()
        self._poll_seldom()
        self._check_logs()
        assert [each.restarts for each in (*self._followers, *self._seldom)] == [0] * 2 * len(_SHAPES)

    def lose_slot(self) -> None:
        """With changes that it has not sent."""
        self._loop.stop()
        self.change()
        self._rig.server.execute(
            "SELECT pg_drop_replication_slot('shapes')",
            "SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')",
        )
        self.change()
        self.begin_epoch(new_epoch=True)

    def back_up(self) -> None:
        """Copy the server's data, after it was stopped or has crashed, as in a disk's snapshot."""
        self._loop.stop()
        self._rng.choice([self._rig.server.stop, self._rig.server.kill])()
        self._backups.append(self._rig.server.copy_to(self._folder / f"copy-{self.counts.total()}"))
        self._rig.server.start()
        self._loop.start()

    def restore(self) -> None:
        """An earlier copy becomes the server, with its slot, and uses LSNs again. Refused, or nothing is missed."""
        self._loop.stop()
        self._rig.server.stop()
        self.use(self._backups.pop(self._rng.randrange(len(self._backups))))
        self._rig.server.start()
        self.change()
        self._loop.start()
        try:
            self.settle()
        except SlotError:
            self.counts["refused"] += 1
            self.begin_epoch(new_epoch=True)
            self._begin_again_what_has_ended()

    def _begin_again_what_has_ended(self) -> None:
        """The copy's slot may lie before a change of a table that its catalog has, which ends the table's shapes."""
        end = self._rig.commit_lsn("SELECT 1")

        def is_confirmed() -> bool:
            self._step()
            return self._rig.confirmed_lsn() >= end

        wait_until(is_confirmed, "the slot past the copy's transactions", _DEADLINE_S, pause_s=_PAUSE_S)
        if ended := [each for each in _SHAPES if self._entry(each).removed_at is not None]:
            self._begin_again(*ended)

    def use(self, server: LocalPostgres) -> None:
        """Capture and snapshots connect to this server from now on."""
        self._rig.server = server
        self._rig.settings["postgres"] = dict(server.options)

    def begin_epoch(self, **how: Any) -> None:
        """Start capture with another source."""
        self._epochs += 1
        self._loop.start(**how)

    def evict(self) -> None:
        """A shape is evicted, misses changes, and begins again."""
        shape_id = self._rng.choice([*_SHAPES])
        self._loop.evict(shape_id)
        self._await_end(shape_id)
        assert self._entry(shape_id).evicted_at_ms is not None
        self.change()
        self._begin_again(shape_id)

    def end_shape(self) -> None:
        """All shapes of a table end by a change of it, and begin again."""
        table = self._rng.choice(["items", "users"])
        kind = (
            f"SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attname = 'id'"  # noqa: S608
        )
        ((before,),) = self._rig.server.execute(kind)
        after = "bigint" if before == "integer" else "integer"
        self._rig.server.execute(f"ALTER TABLE {table} ALTER COLUMN id TYPE {after}")
        self.change()
        ended = [shape_id for shape_id in _SHAPES if shape_id.endswith(table)]
        for shape_id in ended:
            self._await_end(shape_id)
        self.change()
        self._begin_again(*ended)

    def resync(self) -> None:
        """A live shape begins again, because it is doubted."""
        self._begin_again(self._rng.choice([*_SHAPES]))

    def take_again(self) -> None:
        """The snapshot of a live shape is taken again."""
        self._loop.take_snapshots(self._rng.choice([*_SHAPES]))

    def restart_capture(self) -> None:
        """Nothing else happens."""
        self._loop.stop()
        self.change()
        self._loop.start()

    def _define(self) -> None:
        numbers: dict[str, Any] = {
            shape_id: {"incarnation": n} if n > 1 else {} for shape_id, n in self._incarnations.items()
        }
        self._rig.define(*(shape(shape_id, **fields, **numbers[shape_id]) for shape_id, fields in _SHAPES.items()))

    def _entry(self, shape_id: str) -> ShapeEntry:
        """The shape's entry, of the present source."""
        entries = [parse_registry_entry(value) for value in self._rig.values("shapes")]
        source = self._rig.source()
        shapes = (each for each in entries if isinstance(each, ShapeEntry) and each.source == source)
        return [each for each in shapes if each.definition.id == shape_id][-1]

    def _begin_again(self, *shape_ids: str) -> None:
        for shape_id in shape_ids:
            self._incarnations[shape_id] += 1
        self._define()

        def have_begun() -> bool:
            self._step()
            return all(self._entry(each).definition.incarnation == self._incarnations[each] for each in shape_ids)

        wait_until(have_begun, f"the next incarnation of {shape_ids}", _DEADLINE_S, pause_s=_PAUSE_S)

    def _await_end(self, shape_id: str) -> None:
        def has_ended() -> bool:
            self._step()
            return self._entry(shape_id).removed_at is not None

        wait_until(has_ended, f"the end of {shape_id}", _DEADLINE_S, pause_s=_PAUSE_S)

    def change(self) -> None:
        """Some random transactions."""
        for _ in range(self._rng.randrange(1, 6)):
            texts = self._rng.choices(_STATEMENTS, _WEIGHTS, k=self._rng.randrange(1, 4))
            draws = [(self._rng.choice(["items", "users"]), *self._rng.choices(range(1, 60), k=2)) for _ in texts]
            run_in_transaction(
                self._rig.server,
                [
                    text.format(table=table, id=one, other=other, grp=self._rng.randrange(4))
                    for text, (table, one, other) in zip(texts, draws, strict=True)
                ],
            )

    def _step(self) -> None:
        self._loop.step()
        for follower in self._followers:
            # It has ended, or waits for its snapshot, or is not known yet.
            with suppress(ShapeEndedError, SnapshotMissingError, ConfigError):
                follower.poll()

    def settle(self) -> None:
        """Until all shapes are as their queries, for readers and followers, and the slot is past all that there was."""
        end = self._rig.commit_lsn("SELECT 1")

        def is_settled() -> bool:
            self._step()
            return self._difference() is None and self._rig.confirmed_lsn() >= end

        try:
            wait_until(is_settled, "all shapes as their queries", _DEADLINE_S, pause_s=_PAUSE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._difference()}; after {dict(self.counts)}") from error

    def _difference(self) -> str | None:
        """A shape whose rows are not those of its query, to a reader or to the follower."""
        log = str(self._loop.log)
        with closing(connect(self._rig.server.options)) as connection:
            expected = {each.id: row_texts(shape_rows(connection, each)) for each in load_shapes(self._rig.shapes_file)}
        for follower in self._followers:
            rows = expected[follower.shape_id]
            try:
                found = read_shape(log, follower.shape_id).rows.to_pylist()
            except FlushtrackerError as error:
                return f"{follower.shape_id} cannot be read: {error}"
            if row_texts(found) != rows:
                return f"a reader of {follower.shape_id} has other rows than its query"
            if row_texts(row for row in follower.table.values() if row) != rows:
                return f"a follower of {follower.shape_id} has other rows than its query"
            if self.readers.is_running and not self.readers.have(follower.shape_id, rows):
                return f"a client of {follower.shape_id} has other rows than its query: {self.readers.rows}"
        return None

    def _poll_seldom(self) -> None:
        """The followers that read seldom have what those have that read all along."""
        for seldom, follower in zip(self._seldom, self._followers, strict=True):
            seldom.poll()
            assert seldom.table == follower.table, f"two followers of {seldom.shape_id} have other rows"

    def _check_logs(self) -> None:
        """The log of each source can be folded from its beginning, change by change; of the last one to its rows."""
        reader, current = ShapeLogReader(str(self._loop.log)), self._rig.source()
        sources = {event.source for event in self._rig.fragments()}
        assert len(sources) == 1 + self._epochs
        for follower in self._followers:
            for source in sorted(sources):
                table: Table = {}
                try:
                    read = reader.read_log(follower.shape_id, source=source, even_if_ended=True)
                except SnapshotMissingError:
                    assert source != current
                    continue
                fold_strictly(table, read.rows.to_pylist())
                if source == current:
                    assert table == follower.table
