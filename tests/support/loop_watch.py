"""What must hold of the whole loop: at every moment, and when it has come to rest."""

import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from deltalake import DeltaTable

from flushtracker.delta.storage import table_rows
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.table.snapshots import last_snapshots
from flushtracker.tracking.acks.ack_reader import AckReader, read_ack_history
from flushtracker.trials.demo.check import check_shapes
from flushtracker.wal.lsn import format_lsn, parse_lsn
from flushtracker.wal.source_name import SourceName
from tests.support.capture_rig import SLOT
from tests.support.confirmation_trace import ConfirmationTrace
from tests.support.log_trace import TopicLogTrace
from tests.support.loop import Loop
from tests.support.loop_trace import LoopTrace
from tests.support.server_truth import CommittedTransaction
from tests.support.waiting import wait_until

_SOURCE: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, (SELECT timeline_id FROM pg_control_checkpoint())
"""
_TIMEOUT_S: Final = 600
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class Held:
    """What the log has of one transaction of a shape."""

    xid: int
    items: int
    commits: int = 1


class LoopWatch:
    """Checks the slot, the ack table and the shape log against the server's transactions.

    Each violation is an ``AssertionError``. The log is compared with the server's transactions as far as the slot has
    confirmed them: before ``confirmed_lsn``, the greatest that it has had, ``checked`` transactions so far. Of a shape
    that has a snapshot or is folded, the transactions up to there are compared at rest alone, as the rows that they
    lead to; so is a shape that is defined later. ``horizons`` has how often the horizon of each fold advanced.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        ((system_id, timeline),) = loop.server.execute(_SOURCE)
        self.source = str(SourceName(system_id, int(timeline), SLOT))
        self._acks = AckReader(str(loop.rig.acks))
        self.trace = LoopTrace(loop.rig.config.kafka, loop.files / "checkpoint")
        self.log_trace = TopicLogTrace(
            loop.rig.config.kafka, loop.log, [shape.id for shape in loop.content.shapes if not shape.inner]
        )
        self._unchecked: list[CommittedTransaction] = []
        self._ack_lsn = -1
        self._first_lsn = self.confirmed_lsn = loop.rig.confirmed_lsn()
        self.confirmations = ConfirmationTrace(loop.folder / "capture.log", self._first_lsn)
        self._horizons: dict[str, int] = {}
        self.horizons = Counter[str]()
        self.samples = 0
        self.checked = 0

    def sample(self) -> None:
        """Check what must hold at every moment; the server must be up."""
        self._loop.raise_failure()
        self.trace.poll()
        # The slot first: whatever it confirms, the tables must have by then.
        confirmed_lsn = self._loop.rig.confirmed_lsn()
        ack_lsn = self._acks.last_ack(self.source)
        if ack_lsn is not None:
            assert ack_lsn >= self._ack_lsn, f"the ack went back from {self._ack_lsn} to {ack_lsn}"
            self._ack_lsn = ack_lsn
        bound = max(self._first_lsn, self._ack_lsn + 1)
        assert confirmed_lsn <= bound, f"the slot is at {format_lsn(confirmed_lsn)}, past the ack, {format_lsn(bound)}"
        self._unchecked += self._loop.truth.read()
        # A crash of the server may take the slot back.
        if confirmed_lsn > self.confirmed_lsn:
            self._check_log(confirmed_lsn)
            self.confirmed_lsn = confirmed_lsn
        self.samples += 1

    def sample_for(self, seconds: float) -> None:
        """Check again and again for this time, at least once."""
        deadline = time.monotonic() + seconds
        self.sample()
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left_s))
            self.sample()

    def await_lsn(self, lsn: int) -> None:
        """Check again and again until the slot has confirmed everything before ``lsn``."""

        def is_confirmed() -> bool:
            self.sample()
            return self.confirmed_lsn >= lsn

        wait_until(is_confirmed, f"the slot at {format_lsn(lsn)}", _TIMEOUT_S)

    def rest(self) -> str:
        """Once nothing is written any more: wait until the slot is at the end, and check everything.

        Returns the outcome.
        """
        ((end,),) = self._loop.server.execute("SELECT pg_current_wal_insert_lsn()::text")
        self.await_lsn(parse_lsn(end))
        assert not self._unchecked
        self._check_ack_history()
        self._check_confirmed()
        self._check_once()
        self.log_trace.check()
        return check_shapes(self._loop.rig.config, self._loop.log)

    def close(self) -> None:
        self.trace.close()
        self.log_trace.close()

    def counts(self) -> str:
        """What has been seen so far, for a line of a soak's report."""
        confirmed, folds = format_lsn(self.confirmed_lsn), self.horizons.total()
        trace = f"batches={self.trace.batches} resent={self.trace.resent}"
        steps = " ".join(f"{kind}={count}" for kind, count in sorted(self.log_trace.counts.items()))
        return f"transactions={self.checked} {confirmed=!s} samples={self.samples} {folds=} {trace} {steps}"

    def _check_log(self, confirmed_lsn: int) -> None:
        """Compare all that has been confirmed since the last time: every transaction and shape, and no other."""
        due = [each for each in self._unchecked if each.commit_lsn < confirmed_lsn]
        self._unchecked = self._unchecked[len(due) :]
        expected = {
            (shape_id, each.commit_lsn): Held(each.xid, count) for each in due for shape_id, count in each.items.items()
        }
        found = self._held(self.confirmed_lsn, confirmed_lsn)
        for shape_id, lsn in sorted({*expected, *found}):
            if lsn <= self._horizons.get(shape_id, -1):
                continue
            want, have = expected.get((shape_id, lsn)), found.get((shape_id, lsn))
            assert want == have, (
                f"the slot has confirmed {format_lsn(confirmed_lsn)}; of the transaction at {format_lsn(lsn)} the log "
                f"of shape {shape_id} has {have}, and should have {want}"
            )
        self.checked += len(due)

    def _held(self, first_lsn: int, end_lsn: int) -> dict[tuple[str, int], Held]:
        """By shape and commit LSN, what the log has of the transactions from ``first_lsn`` to before ``end_lsn``."""
        if not DeltaTable.is_deltatable(str(self._loop.log)):
            return {}
        table = DeltaTable(str(self._loop.log))
        self._take_horizons(table)
        columns = ["shape_id", "tx_offset", "xid", f"operation = '{COMMIT}' AS is_commit"]
        condition = f"tx_offset >= {first_lsn:d} AND tx_offset < {end_lsn:d}"
        rows = table_rows(table, columns, condition)
        groups = rows.group_by(["shape_id", "tx_offset", "xid"]).aggregate([("is_commit", "sum"), ([], "count_all")])
        found: dict[tuple[str, int], Held] = {}
        judged = {shape.id for shape in self._loop.content.shapes}
        for row in groups.to_pylist():
            if row["shape_id"] not in judged:
                continue
            key, commits = (row["shape_id"], row["tx_offset"]), row["is_commit_sum"]
            assert key not in found, f"the log has the xids {found[key].xid} and {row['xid']} at {key}"
            found[key] = Held(row["xid"], row["count_all"] - commits, commits)
        return found

    def _take_horizons(self, table: DeltaTable) -> None:
        """Where each log begins that has a snapshot or fold in this version of the table; no horizon may go back."""
        for (_, shape_id), snapshot in last_snapshots(table).items():
            before = self._horizons.get(shape_id, -1)
            assert before <= snapshot.lsn, f"the horizon of shape {shape_id} went back from {before} to {snapshot.lsn}"
            if before < snapshot.lsn:
                self._horizons[shape_id] = snapshot.lsn
                self.horizons[shape_id] += snapshot.is_fold

    def _check_ack_history(self) -> None:
        """Every ack is greater than all before it."""
        # Before the acks are read: a batch appends its own before it is committed, and capture confirms only these.
        self.trace.poll()
        self.confirmations.poll()
        acks = read_ack_history(str(self._loop.rig.acks)).acks
        for before, after in pairwise(acks):
            assert before.ack_lsn < after.ack_lsn, f"the ack {before.ack_lsn} is there twice"
            assert before.acked_at <= after.acked_at, f"the ack {before.ack_lsn} came after {after.ack_lsn}"
        self.trace.check(acks)
        self.confirmations.check(acks)

    def _check_confirmed(self) -> None:
        """The slot is nowhere but where capture has reported it to be."""

        def is_reported() -> bool:
            # It logs what it has sent, a moment later.
            self.confirmations.poll()
            return self.confirmed_lsn <= self.confirmations.greatest_lsn

        wait_until(is_reported, f"capture's report of {format_lsn(self.confirmed_lsn)}", _TIMEOUT_S)

    def _check_once(self) -> None:
        """No source, shape and offset is in the log twice."""
        key = ["source", "shape_id", "tx_offset", "op_offset"]
        rows = table_rows(DeltaTable(str(self._loop.log)), key)
        distinct = rows.group_by(key).aggregate([]).num_rows
        assert distinct == rows.num_rows, f"{rows.num_rows - distinct} rows of the log are there twice"
