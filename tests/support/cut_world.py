"""``CutWorld``: a small model of everything that decides about cuts, with kills, late reads and compaction at random.

The production code decides what a cut is (``shape_log.write.cuts.Cuts``), what of the registry table counts
(``events.registry.goes_back``), and whether a shape may be read at a cut. All else is as plain as it can be: streams
are lists, a log is a set of transactions, and each program does its next step, or is killed, whenever the seed says so.

A shape's rows are the set of the transactions that changed them. So what a read should give is known at once.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from flushtracker.config.streams import SHAPE_CHANGES, SHAPES
from flushtracker.errors import ConfigError, StateError
from flushtracker.events.registry import goes_back
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.cut_finder import require_complete
from flushtracker.shape_log.table.found_shape import FoundShape, require_readable
from flushtracker.shape_log.write.cuts import CutInputs, Cuts
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

SOURCE: Final = "7301/1/shapes"
TABLE_OF: Final = {"a": "A", "a2": "A", "b": "B", "b2": "B"}
_FEW, _LONG = 6, 200
_RECORD: Final = 8
"""The length of a commit record."""


@dataclass
class ShapeLog:
    """``commits``: transactions in the log. ``rows``: those that made the rows of the ``snapshot``."""

    commits: set[int] = field(default_factory=set)
    snapshot: ShapeSnapshot | None = None
    rows: set[int] = field(default_factory=set)

    @property
    def incarnation(self) -> int:
        return 1 if self.snapshot is None else self.snapshot.incarnation

    def counted(self) -> set[int]:
        """The transactions that the snapshot does not contain."""
        snapshot = self.snapshot
        return {tx for tx in self.commits if snapshot is None or not snapshot.contains(tx, tx // _RECORD)}

    def at(self, lsn: int) -> set[int]:
        """The rows after the transactions up to ``lsn``, by the rule for readers."""
        return {tx for tx in self.counted() if tx <= lsn} | self.rows


@dataclass(frozen=True)
class Faults:
    """What is left out of the rules, to see that the model notices."""

    no_ends: bool = False
    acks_of_another_log: bool = False
    registry_first: bool = False
    may_go_back: bool = False
    begins_ignored: bool = False
    losses_ignored: bool = False


class CutWorld:
    """``reads`` counts what was read, ``refused`` what was not; a wrong read is an ``AssertionError``.

    ``loses_entries``: the topic of shapes may also lose its beginning. ``is_calm``: shapes change less often, and
    their snapshots are seldom taken again.
    """

    def __init__(
        self, seed: int, faults: Faults | None = None, *, loses_entries: bool = False, is_calm: bool = False
    ) -> None:
        self._loses_entries, self._is_calm = loses_entries, is_calm
        self.rng = random.Random(seed)  # noqa: S311  reproducible
        self.faults = faults or Faults()
        self.reads = self.refused = 0
        self.history: dict[int, frozenset[str]] = {}
        # The topics.
        self.shapes: dict[int, ShapeEntry] = {}
        self.begin = self.end = 0
        self.fragments: list[tuple[int, frozenset[str]]] = []
        self.changes: list[tuple[str, int, int]] = []
        self.flushes: list[tuple[str, int]] = []
        # Capture.
        self.live: dict[str, ShapeEntry] = {}
        self.decoded = 0
        self.doing: Iterator[None] | None = None
        # The tracking job, and its table.
        self.tracked = (0, 0)
        self.ack = -1
        self.ack_table: int | None = None
        # The writers' job, its tables, and what a killed one may still do.
        self.written = (0, 0)
        self.planned: tuple[int, int] | None = None
        self.writing: Iterator[None] | None = None
        self.late: list[list[ShapeEntry]] = []
        self.registry: list[ShapeEntry] = []
        self.logs: dict[str, ShapeLog] = {}
        self.cut: int | None = None
        self.cuts = self._open_cuts()
        self.copy: tuple[dict[str, ShapeLog], list[ShapeEntry], tuple[int, int], int | None] | None = None
        self.restores = 0
        self._version = 0
        self._begun: list[Callable[[], None]] = []
        """What has begun and lets others take steps meanwhile; each at most once."""

    @property
    def wal_end(self) -> int:
        return _RECORD * (len(self.history) + 2)

    def some_steps(self, most: int = _FEW) -> None:
        """What the others do meanwhile."""
        for _ in range(self.rng.randrange(most)):
            self.step()

    def step(self) -> None:
        steps: dict[Callable[[], None], float] = {
            self.commit: 3,
            self.capture: 14,
            self.kill_capture: 0.5,
            self.compact: 2,
            self.track: 8,
            self.lose_acks: 0.5,
            self.write: 16,
            self.kill_writers: 1,
            self.write_late: 1,
            self.lose_checkpoint: 0.3,
            self.fold: 0.3,
            self.delete_logs: 1,
            self.copy_or_restore: 0.4,
            self.prove: 8,
            self.read: 6,
            self.take_snapshot: 2,
        }
        if self._loses_entries:
            steps[self.lose_entries] = 0.1
        allowed = [each for each in steps if each not in self._begun]
        (do,) = self.rng.choices(allowed, [steps[each] for each in allowed])
        if do in {self.prove, self.read, self.take_snapshot}:
            self._begun.append(do)
        do()
        if do in self._begun:
            self._begun.remove(do)

    def _some_of(self, read: int, end: int) -> int:
        """How far somebody reads who has read so far: often all, or nothing."""
        return self.rng.choice([read, end, end, self.rng.randint(read, end)])

    def commit(self) -> None:
        tables = self.rng.choice([{"A"}, {"B"}, {"A", "B"}, {"A", "B"}, set[str]()])
        self.history[self.wal_end] = frozenset(tables)

    # Capture: what it does is divided where it may be killed.

    def capture(self) -> None:
        if self.doing is None:
            self.doing = self.rng.choices([self._decode, self._change_shapes], [30 if self._is_calm else 9, 1])[0]()
        if next(self.doing, "done") == "done":
            self.doing = None

    def _decode(self) -> Iterator[None]:
        if (tx := min((lsn for lsn in self.history if lsn > self.decoded), default=None)) is None:
            return
        routed = {
            each.definition.id: each
            for each in self.live.values()
            if TABLE_OF[each.definition.id] in self.history[tx] and each.starts_after.tx_offset < tx
        }
        self.changes += [(shape_id, each.definition.incarnation, tx) for shape_id, each in routed.items()]
        yield
        self.fragments.append((tx, frozenset(routed)))
        self.decoded = tx

    def _change_shapes(self) -> Iterator[None]:
        shape_id = self.rng.choice([*TABLE_OF])
        last = self.last_entries().get(shape_id)
        if shape_id in self.live:
            is_resync = self.rng.random() < 0.5
            removed = replace(
                self.live[shape_id],
                removed_at=LogOffset(self.wal_end, 0),
                ended_because=BEGUN_AGAIN if is_resync else None,
            )
            self._publish(removed)
            yield
            del self.live[shape_id]
            yield
            self.flushes.append((shape_id, self.wal_end))
            if not is_resync:
                return
            last = removed
            yield
        incarnation = 1 if last is None else last.definition.incarnation + 1
        starts_after = LogOffset(self.wal_end - 1, 0)
        if last is not None and last.removed_at is not None:
            starts_after = max(starts_after, last.removed_at)
        snapshot = incarnation > 1 or self.rng.random() < 0.7
        definition = ShapeDefinition(shape_id, ("public", "t"), snapshot=snapshot, incarnation=incarnation)
        entry = ShapeEntry(SOURCE, definition, 7, starts_after)
        self._publish(entry)
        yield
        self.live[shape_id] = entry

    def _publish(self, entry: ShapeEntry) -> None:
        self.shapes[self.end] = entry
        self.end += 1

    def kill_capture(self) -> None:
        """The next one reads the registry, publishes removals again, and is sent what is not confirmed."""
        self.doing = None
        entries = self.last_entries()
        confirmed = (self.ack_table or 0) + 1
        self.live = {shape_id: each for shape_id, each in entries.items() if each.removed_at is None}
        for shape_id, each in entries.items():
            ends_at = each.removed_at
            if ends_at is None and each.definition.incarnation > 1:
                ends_at = each.starts_after
            if ends_at is not None and ends_at.tx_offset >= confirmed:
                self.flushes.append((shape_id, ends_at.tx_offset))
        self.decoded = min(self.decoded, confirmed - 1)
        for each in entries.values():
            if each.removed_at is not None and each.removed_at.tx_offset < confirmed and not each.is_condensed:
                self._publish(each.condensed())

    def last_entries(self) -> dict[str, ShapeEntry]:
        return {each.definition.id: each for _, each in sorted(self.shapes.items())}

    def compact(self) -> None:
        """Delete what a later record of the same key replaces, up to some record: the rest is the active segment."""
        closed = self.rng.randrange(self.end + 1)
        last = {each.definition.id: offset for offset, each in sorted(self.shapes.items()) if offset < closed}
        self.shapes = {
            offset: each
            for offset, each in self.shapes.items()
            if offset >= closed or last[each.definition.id] == offset
        }

    def lose_entries(self) -> None:
        """Delete the beginning of the topic, whoever has read it."""
        self.begin = self.rng.randint(self.begin, self.end)
        self.shapes = {offset: each for offset, each in self.shapes.items() if offset >= self.begin}

    # The tracking job.

    def track(self) -> None:
        """Read some more of each topic; the ack by its definition."""
        fragments, flushes = self.tracked
        self.tracked = self._some_of(fragments, len(self.fragments)), self._some_of(flushes, len(self.flushes))
        flushed: dict[str, int] = {}
        for shape_id, lsn in self.flushes[: self.tracked[1]]:
            flushed[shape_id] = max(lsn, flushed.get(shape_id, -1))
        cursor = ack = -1
        for tx, routed in self.fragments[: self.tracked[0]]:
            if tx <= cursor:
                continue  # A resend.
            cursor = tx
            if any(flushed.get(shape_id, -1) < tx for shape_id in routed):
                break
            ack = tx
        self.ack = max(self.ack, ack)
        if self.ack > (-1 if self.ack_table is None else self.ack_table):
            self.ack_table = self.ack

    def lose_acks(self) -> None:
        self.ack_table = None

    # The writers' job.

    def write(self) -> None:
        if self.writing is None:
            if self.planned is None:
                read, changed = self.written
                self.planned = self._some_of(read, self.end), self._some_of(changed, len(self.changes))
            self.writing = self._write(*self.planned)
        if next(self.writing, "done") == "done":
            self.writing = None

    def _write(self, read: int, changed: int) -> Iterator[None]:
        entries = [each for offset, each in sorted(self.shapes.items()) if self.written[0] <= offset < read]
        changes = self.changes[self.written[1] : changed]
        yield
        self._append_entries(entries)
        yield
        ended = {shape_id: each for shape_id, each in self.current().items() if each.removed_at is not None}
        durable: dict[str, int] = {}
        for shape_id, incarnation, tx in changes:
            log = self.logs.setdefault(shape_id, ShapeLog())
            if shape_id in ended and ended[shape_id].definition.incarnation >= incarnation:
                continue
            if incarnation < log.incarnation:
                continue
            if incarnation > log.incarnation:
                attempt = 1 if log.snapshot is None else log.snapshot.attempt + 1
                log.snapshot, log.rows = ShapeSnapshot.mark(attempt, incarnation), set()
            folded = log.snapshot is not None and log.snapshot.is_fold and tx <= log.snapshot.lsn
            if not folded:
                log.commits.add(tx)
            durable[shape_id] = tx
        yield
        self.flushes += durable.items()
        yield
        self.written, self.planned = (read, changed), None

    def _append_entries(self, entries: list[ShapeEntry]) -> None:
        for entry in entries:
            known = self.current().get(entry.definition.id)
            if known == entry or (known is not None and self._goes_back(entry, known)):
                continue
            if entry.is_condensed and known is not None:
                if known.removed_at is None or known.definition.incarnation < entry.definition.incarnation:
                    definition = replace(known.definition, incarnation=entry.definition.incarnation)
                    self.registry.append(replace(known, definition=definition, removed_at=entry.removed_at))
                continue
            self.registry.append(entry)

    def current(self) -> dict[str, ShapeEntry]:
        """The registry table as its readers take it."""
        found: dict[str, ShapeEntry] = {}
        for each in self.registry:
            known = found.get(each.definition.id)
            if known is None or not self._goes_back(each, known):
                found[each.definition.id] = each
        return found

    def _goes_back(self, entry: ShapeEntry, known: ShapeEntry) -> bool:
        return not self.faults.may_go_back and goes_back(entry, known)

    def kill_writers(self) -> None:
        """The next one runs the same batch again. This one may only have been frozen."""
        if self.writing is not None and self.planned is not None:
            read = self.planned[0]
            self.late.append([each for offset, each in self.shapes.items() if self.written[0] <= offset < read])
        self.writing = None

    def write_late(self) -> None:
        """A writer that was replaced has looked at the table before: the entries it appends may be old."""
        if self.late:
            self.registry += self.late.pop()

    def lose_checkpoint(self) -> None:
        """The next one reads the topics from their beginnings; the log says what it has."""
        if self.writing is None:
            self.written, self.planned = (0, 0), None

    def fold(self) -> None:
        for shape_id, log in self.logs.items():
            entry = self.current().get(shape_id)
            old = [tx for tx in log.commits if log.snapshot is None or tx >= log.snapshot.lsn]
            if entry is None or not old or (log.snapshot is None and entry.definition.snapshot) or self._is_mark(log):
                continue
            horizon = self.rng.choice(old)
            attempt = 1 if log.snapshot is None else log.snapshot.attempt + 1
            log.rows = log.at(horizon)
            log.commits = {tx for tx in log.commits if tx >= horizon}
            log.snapshot = ShapeSnapshot.fold(attempt, horizon, horizon // _RECORD, log.snapshot)

    def delete_logs(self) -> None:
        for shape_id, entry in self.current().items():
            if entry.removed_at is not None and entry.ended_because is None:
                self.logs.pop(shape_id, None)

    @staticmethod
    def _is_mark(log: ShapeLog) -> bool:
        return log.snapshot is not None and log.snapshot.is_mark

    def take_snapshot(self) -> None:
        """For a live shape that the registry table has; some transactions are not visible yet, or commit meanwhile."""
        wanted = [each for each in self.current().values() if each.removed_at is None and each.definition.snapshot]
        if not wanted:
            return
        entry = self.rng.choice(wanted)
        shape_id, definition = entry.definition.id, entry.definition
        log = self.logs.get(shape_id, ShapeLog())
        is_again = log.snapshot is not None and not self._is_mark(log) and log.incarnation == definition.incarnation
        if self._is_calm and is_again and self.rng.random() < 0.95:
            return
        starts = entry.starts_after.tx_offset
        recent = [tx for tx in self.history if tx > starts][-3:]
        hidden = {tx for tx in recent if self.rng.random() < 0.3}
        next_xid = self.wal_end // _RECORD
        xip = tuple(sorted(tx // _RECORD for tx in hidden))
        rows = {tx for tx, tables in self.history.items() if TABLE_OF[shape_id] in tables and tx not in hidden}
        if starts >= self.wal_end:
            return
        self.some_steps()
        log = self.logs.setdefault(shape_id, ShapeLog())
        attempt = 1 if log.snapshot is None else log.snapshot.attempt + 1
        visible = MvccSnapshot(min([*xip, next_xid]), next_xid, xip)
        lsn = self.wal_end
        started = starts if definition.incarnation > 1 else -1
        # The transaction that commits at this end of the WAL may have begun by now.
        next_xid = lsn // _RECORD + 1
        snapshot = ShapeSnapshot(
            attempt, visible, lsn, next_xid, incarnation=definition.incarnation, starts_after=started
        )
        self.some_steps()
        log = self.logs.setdefault(shape_id, ShapeLog())
        if snapshot.may_replace(log.snapshot):
            log.snapshot, log.rows = snapshot, rows

    # The cuts, and their readers.

    def _open_cuts(self) -> Cuts:
        return Cuts(CutInputs(self._acks, self._read, self._begins, self._ends), self._note)

    def copy_or_restore(self) -> None:
        """Copy the writers' tables and checkpoint, or put the last copy in their place; the ack table goes on."""
        if self._begun or self.writing is not None:
            return
        if self.copy is None or self.rng.random() < 0.5:
            self.copy = copy.deepcopy((self.logs, self.registry, self.written, self.cut))
            return
        self.restores += 1
        self.logs, self.registry, self.written, self.cut = copy.deepcopy(self.copy)
        self.planned = None
        self.late.clear()
        self.cuts = self._open_cuts()

    def _acks(self) -> Mapping[str, int]:
        self.some_steps()
        return {} if self.ack_table is None else {SOURCE: self.ack_table}

    def _read(self) -> Mapping[str, Mapping[int, int]]:
        self.some_steps()
        return {SHAPES: {0: self.written[0]}, SHAPE_CHANGES: {0: self.written[1]}}

    def _begins(self, _: str) -> Mapping[int, int]:
        return {0: 0 if self.faults.losses_ignored else self.begin}

    def _ends(self, stream: str) -> Mapping[int, int]:
        self.some_steps()
        if stream == SHAPE_CHANGES:
            return {0: 0 if self.faults.acks_of_another_log else len(self.changes)}
        return {0: self.written[0] if self.faults.no_ends else self.end}

    def _note(self, cuts: Mapping[str, int]) -> Mapping[str, int]:
        self.some_steps()
        self.cut = max(cuts[SOURCE], -1 if self.cut is None else self.cut)
        return cuts

    def prove(self) -> None:
        with suppress(StateError):
            self.cuts.advance()

    def read(self) -> None:
        """Read all shapes of a random set as of the cut, and compare each with the history."""
        registry = self.current() if self.faults.registry_first else None
        self.some_steps(_LONG if self.faults.registry_first else 1)
        cut = self.cut
        self.some_steps()
        logs = self.copied_logs()
        self.some_steps()
        registry = self.current() if registry is None else registry
        known = [each for each in registry if registry[each].removed_at is None] or [*TABLE_OF]
        wanted = self.rng.sample(known, self.rng.randint(1, min(2, len(known))))
        if cut is None:
            return
        self.some_steps()
        try:
            found = {shape_id: self._rows(shape_id, logs, registry, cut) for shape_id in wanted}
        except ConfigError:
            self.refused += 1
            return
        self.reads += 1
        for shape_id, rows in found.items():
            expected = self.rows_at(shape_id, registry[shape_id], cut)
            assert rows == expected, f"at {cut}, shape {shape_id} has {sorted(rows)}, not {sorted(expected)}"

    def published(self, entry: ShapeEntry, after: int) -> list[int]:
        """The transactions of a shape's incarnation after one that are in the topic; the log may lack them."""
        wanted = entry.definition.id, entry.definition.incarnation
        return sorted(
            {tx for shape_id, incarnation, tx in self.changes if (shape_id, incarnation) == wanted and tx > after}
        )

    def rows_at(self, shape_id: str, entry: ShapeEntry, lsn: int) -> set[int]:
        """The rows that a shape has after all transactions up to ``lsn``, by the history alone."""
        first = 0 if entry.definition.snapshot else entry.starts_after.tx_offset + 1
        return {tx for tx, on in self.history.items() if TABLE_OF[shape_id] in on and first <= tx <= lsn}

    def copied_logs(self) -> dict[str, ShapeLog]:
        return {shape_id: replace(log, commits={*log.commits}) for shape_id, log in self.logs.items()}

    def next_version(self) -> int:
        """That of the log, which whoever looks later finds later."""
        self._version += 1
        return self._version

    def _rows(
        self, shape_id: str, logs: Mapping[str, ShapeLog], registry: Mapping[str, ShapeEntry], cut: int
    ) -> set[int]:
        log, entry = logs.get(shape_id, ShapeLog()), registry.get(shape_id)
        if entry is not None and entry.removed_at is not None:
            require_readable(entry, even_if_ended=False, has_log=shape_id in logs)
        shape = FoundShape(1, SOURCE, shape_id, max(log.commits, default=None), log.snapshot, entry, None)
        shape.require_started()
        shape.require_snapshot()
        if entry is None or not self.faults.begins_ignored:
            require_complete(shape, cut)
        return log.at(cut)

    def rest(self) -> None:
        """Everybody finishes what there is; then the cut is the last transaction, unless entries were lost."""
        while self.doing is not None:
            self.capture()
        while self.decoded < max(self.history, default=0):
            for _ in self._decode():
                pass
        self.late.clear()
        while self.writing is not None:
            self.write()
        self.planned = self.end, len(self.changes)
        for _ in self._write(*self.planned):
            pass
        self.tracked = len(self.fragments), len(self.flushes)
        self.track()
        self.rng = _Still()
        # One that waits is noted first.
        self.prove()
        self.prove()


class _Still(random.Random):
    """Takes no further steps."""

    def randrange(self, *_: object) -> int:
        return 0
