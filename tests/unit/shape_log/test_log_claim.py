"""Which writer may append to a shape log: writers that take, append, stall, die and return, on a real Delta table."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_registry import register, shape_entry
from tests.support.shape_log_rows import SOURCE, append, arrow, commit, item

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@dataclass
class Checkpoint:
    """What a naive checkpoint keeps: its claim, its last batch, and all of the log's rows that it knows of."""

    claim: int | None = None
    batch_id: int = -1
    rows: set[tuple[int, int]] = field(default_factory=set)


class Writer:
    """A process of the job on a checkpoint, and what is naively true of it."""

    def __init__(self, path: str, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.meanwhile: Callable[[], object] = lambda: None
        table = create_shape_log(path)
        self.files = LogFiles(table, {})
        self.claim = LogClaim(_meanwhile(table, self._act))
        number = self.claim.take(checkpoint.claim)
        log = log_rows(path)
        if self.claim.covers(checkpoint.claim, checkpoint.batch_id):
            assert log == checkpoint.rows, "it does not know all of the log"
        checkpoint.rows |= log
        checkpoint.claim = number

    def _act(self) -> None:
        self.meanwhile()

    def append(self, offset: tuple[int, int], meanwhile: Callable[[], object] = lambda: None) -> None:
        """The append of the next batch, as ``WriteDriver`` does it; the batch is not committed yet."""
        written = WrittenFile(self.files.write(arrow([item(offset, "insert")]), None, is_change=True))
        self.meanwhile = meanwhile
        self.claim.append([written], self.claim.version_of(self.checkpoint.batch_id + 1))
        self.meanwhile = lambda: None

    def commit(self, offset: tuple[int, int] | None) -> None:
        self.checkpoint.batch_id += 1
        if offset is not None:
            self.checkpoint.rows.add(offset)


def log_rows(path: str) -> set[tuple[int, int]]:
    rows = table_rows(DeltaTable(path), ["tx_offset", "op_offset"]).to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    return {(row["tx_offset"], row["op_offset"]) for row in rows}


@pytest.fixture
def path(tmp_path: Path) -> str:
    create_shape_log(str(tmp_path / "log"))
    return str(tmp_path / "log")


class World:
    """Writers on two checkpoints, each of which may be fenced at any moment, and their appends."""

    def __init__(self, path: str, rng: Random) -> None:
        self.path, self.rng = path, rng
        self.checkpoints = [Checkpoint(), Checkpoint()]
        self.writers: list[Writer] = []
        self.accepted: list[Writer] = []
        self.claimed: list[Writer] = []
        self.refused = 0
        self._tx = 1000

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.25 or not self.writers:
            self.start()
        elif kind < 0.35 and len(self.writers) > 1:
            self.writers.remove(self.rng.choice(self.writers))
        else:
            self.batch()

    def start(self) -> None:
        checkpoint = self.rng.choice(self.checkpoints)
        # Spark lets one query use a checkpoint; the fencing of two on one is the tests' of the job.
        self.writers = [writer for writer in self.writers if writer.checkpoint is not checkpoint]
        self.writers.append(Writer(self.path, checkpoint))
        self.claimed.append(self.writers[-1])

    def batch(self) -> None:
        """A batch with rows, or without; in a quarter of them, another writer does something in the middle."""
        writer = self.rng.choice(self.writers)
        others = [other for other in self.writers if other is not writer]
        meanwhile: Callable[[], object] = lambda: None  # noqa: E731
        if self.rng.random() < 0.25:
            meanwhile = self.start_other(writer)
        elif others and self.rng.random() < 0.2:
            meanwhile = lambda: self.append(others[0])  # noqa: E731
        offset = self.append(writer, meanwhile) if self.rng.random() < 0.8 else None
        is_fenced = writer not in self.writers or (offset is None and writer is not self.claimed[-1])
        if not is_fenced and self.rng.random() < 0.8:
            writer.commit(offset)
        elif writer in self.writers:
            self.writers.remove(writer)  # It dies between the append and the commit of its batch.

    def start_other(self, writer: Writer) -> Callable[[], object]:
        (other,) = (checkpoint for checkpoint in self.checkpoints if checkpoint is not writer.checkpoint)

        def start() -> None:
            self.writers = [each for each in self.writers if each.checkpoint is not other]
            self.writers.append(Writer(self.path, other))
            self.claimed.append(self.writers[-1])

        return start

    def append(self, writer: Writer, meanwhile: Callable[[], object] = lambda: None) -> tuple[int, int] | None:
        self._tx += 10
        offset = (self._tx, 0)
        before = log_rows(self.path)
        try:
            writer.append(offset, meanwhile)
        except SinkError:
            assert writer is not self.claimed[-1], "the last writer that claimed the log is fenced"
            assert offset not in log_rows(self.path), "a fenced writer's rows are in the log"
            self.refused += 1
            self.writers = [each for each in self.writers if each is not writer]
            return None
        assert writer is self.claimed[-1], "an older claim's append follows a newer claim"
        assert log_rows(self.path) >= before | {offset}
        self.accepted.append(writer)
        return offset


def test_no_append_follows_a_newer_claim_and_no_checkpoint_knows_less_than_it_says(tmp_path: Path) -> None:
    """Random writers on two checkpoints, against a model that compares whole logs."""
    refused = accepted = 0
    for seed in range(12):
        path = str(tmp_path / str(seed))
        create_shape_log(path)
        world = World(path, Random(seed))  # noqa: S311  reproducible
        for _ in range(20):
            world.step()
        refused += world.refused
        accepted += len(world.accepted)
    assert refused > 10
    assert accepted > 30


def _meanwhile(table: DeltaTable, action: Callable[[], object]) -> Any:
    """The table, on which ``action`` happens between the look at the last version and the commit."""

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            if name == "create_write_transaction":
                action()
            return getattr(table, name)

    return Interrupted()


def test_claims_of_the_same_moment_are_one_claim(path: str) -> None:
    """The other writer is told; with both claims equal, neither would ever be fenced."""
    first = LogClaim(create_shape_log(path))
    second = LogClaim(_meanwhile(create_shape_log(path), first.take))
    with pytest.raises(SinkError, match=r"has been fenced: another writer started on shape log .* at the same moment"):
        second.take()
    first.require()


def test_fenced_writer_is_told_who_fenced_it(path: str) -> None:
    """By host and process, as the later claim's commit has them."""
    first, second = LogClaim(create_shape_log(path)), LogClaim(create_shape_log(path))
    first.take()
    second.take()
    with pytest.raises(SinkError, match=rf"another writer \([^)]*\b{os.getpid()}\b[^)]*\) writes to shape log"):
        first.require()


def test_append_of_the_process_before_cannot_slip_in_before_the_claim(path: str) -> None:
    """The checkpoint would not know its rows, and the rerun of its batch would write them again."""
    before = Writer(path, Checkpoint())
    before.append((1000, 0))
    before.commit((1000, 0))
    claim = LogClaim(_meanwhile(create_shape_log(path), lambda: before.append((1010, 0))))
    with pytest.raises(SinkError, match="or wrote to it, at the same moment"):
        claim.take(before.checkpoint.claim)
    claim = LogClaim(create_shape_log(path))
    claim.take(before.checkpoint.claim)
    assert not claim.covers(before.checkpoint.claim, before.checkpoint.batch_id)


def test_append_between_two_looks_at_the_log_is_not_overlooked(path: str) -> None:
    """What the checkpoint knows is judged by the version that the claim follows, not by an earlier one."""
    before = Writer(path, Checkpoint())
    before.append((1000, 0))
    before.commit((1000, 0))
    claim = LogClaim(create_shape_log(path))
    before.append((1010, 0))  # The new process has read the checkpoint already.
    claim.take(before.checkpoint.claim)
    assert not claim.covers(before.checkpoint.claim, before.checkpoint.batch_id)


def test_append_goes_on_when_upkeep_deletes_a_removed_shape_at_the_same_moment(path: str) -> None:
    """deltalake refuses an append that meets a deletion; the job would end, with its rows not notified."""
    writer = Writer(path, Checkpoint())
    writer.append((1000, 0))
    writer.commit((1000, 0))
    upkeep = LogFiles(create_shape_log(path), {})
    (file,) = upkeep.current()
    deletions = iter([[file]])
    writer.append((1010, 0), lambda: upkeep.replace(next(deletions, []), [], is_deletion=True))
    assert log_rows(path) == {(1010, 0)}


def test_append_that_was_committed_and_failed_all_the_same_is_there_once(path: str) -> None:
    """As on an object store whose answer was lost; a second commit would add the rows again."""
    writer = Writer(path, Checkpoint())
    table = create_shape_log(path)

    class Unlucky:
        def __getattr__(self, name: str) -> Any:
            return getattr(table, name)

        def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
            table.create_write_transaction(*arguments, **named)
            raise CommitFailedError("the answer was lost")

    claim = LogClaim(table)
    claim.take()
    claim._table = Unlucky()  # type: ignore[assignment]  # a table, but for its answer
    written = WrittenFile(writer.files.write(arrow([item((1000, 0), "insert")]), None, is_change=True))
    claim.append([written], claim.version_of(0))
    assert log_rows(path) == {(1000, 0)}
    with pytest.raises(SinkError, match=r"has an append of version \d+ already"):
        claim.append([written], claim.version_of(0))


def test_log_restored_from_before_the_claim_or_from_after_it_is_refused(path: str) -> None:
    """A permanent job keeps its claim for months, so a backup mostly has the claim, and lacks rows."""
    checkpoint = Checkpoint()
    writer = Writer(path, checkpoint)
    writer.append((1000, 0))
    row = (SOURCE, "users", LogOffset(1000, 0))
    LogClaim(create_shape_log(path)).take(checkpoint.claim, [row])
    for claim, rows in ((checkpoint.claim, [(SOURCE, "users", LogOffset(1010, 0))]), (100, [row])):
        with pytest.raises(SinkError, match="is older than the checkpoint"):
            LogClaim(create_shape_log(path)).take(claim, rows)
    append(path, [item((1010, 0), "insert")])
    LogClaim(create_shape_log(path)).take(checkpoint.claim, [(SOURCE, "users", LogOffset(1010, 0))])


def test_row_that_is_folded_does_not_make_the_log_older(path: str) -> None:
    """The end of its transaction is still there."""
    register(path, shape_entry())
    updates = [item((1000, 2 * n), "update", "1", {"id": "1"}) for n in range(1, 5)]
    append(path, [item((1000, 0), "insert", "1", {"id": "1"}), *updates, commit(1000)])
    upkeep = ShapeLogUpkeep(path, f"{path}_shapes", retain=RetentionPolicy(timedelta(0), least_dropped=1))
    assert upkeep.run(_NOW).folded_shapes == 1
    assert (1000, 0) not in log_rows(path)
    LogClaim(create_shape_log(path)).take(None, [(SOURCE, "users", LogOffset(1000, 0))])
    with pytest.raises(SinkError, match="is older than the checkpoint"):
        LogClaim(create_shape_log(path)).take(None, [(SOURCE, "users", LogOffset(1001, 0))])


def test_the_number_of_an_append_is_the_same_in_every_release(tmp_path: Path) -> None:
    """Literally: a release that read another claim or batch there would fence nobody."""
    app_id = "flushtracker: writer of this table"
    path = str(tmp_path / "log")
    first, second = LogClaim(create_shape_log(path)), LogClaim(DeltaTable(path))
    assert first.take() == 2
    assert DeltaTable(path).transaction_version(app_id) == 8_589_934_592
    assert first.version_of(41) == 12_884_901_930
    assert second.take(2) == 4
    assert DeltaTable(path).transaction_version(app_id) == 17_179_869_184
