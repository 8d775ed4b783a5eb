"""Faults in the proof that a source goes on, in what heals a shape, and in how servers go on for clients.

A test finds each. The table names them.

Those that need a server are in ``tests/integration/test_proof_mutants.py``.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes import lost_starts
from flushtracker.capture.source import continuity
from flushtracker.capture.wire.history_check import ResendCheck
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.errors import FlushtrackerError
from flushtracker.serve import beginning
from flushtracker.serve.follower import Follower
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
from flushtracker.serve.shape_looks import ShapeLooks
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.snapshot import due_shapes
from flushtracker.shape_log.snapshot_reader import SnapshotReader
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.mutated import mutated
from tests.unit.capture import test_continuity, test_failover, test_standby_status
from tests.unit.capture.test_failover import world  # noqa: F401  likewise
from tests.unit.serve import test_serve_ahead
from tests.unit.shape_log import test_difference_orders, test_due_shapes, test_snapshot_reader
from tests.unit.shape_log.test_difference_orders import log  # noqa: F401  a fixture, which pytest must find here

_HANGS_S: Final = 5.0
"""After which a story of clients has found that one waits for ever."""

Mutant = tuple[Callable[..., Any], str, str, Callable[..., None]]


def _story(test: Callable[..., Coroutine[Any, Any, None]], **given: Any) -> Callable[..., None]:
    """A test of clients, on an event loop of its own."""

    def run(tmp_path: Path) -> None:
        path = str(tmp_path / "log")
        create_shape_log(path)
        test_serve_ahead.begin(path)
        asyncio.run(asyncio.wait_for(test(path, **given), _HANGS_S))

    return run


_PUBLISHED: Final = partial(test_continuity.test_what_was_published_at_or_past_the_switch_point_is_lost, 500)
_SUCCESSOR_OF_A_TWIN: Final = TimelineHistory(3, ((1, 499), (2, 900)))
_SLOT: Final = test_continuity.test_a_slot_that_was_created_after_the_promotion_is_refused

_UPGRADE: Final = test_continuity.test_an_upgrade_is_refused_if_one_thing_is_not_proven
_SEAL: Final[Any] = test_continuity.UPGRADE["seal"]
_LATER: Final[Any] = replace(test_continuity.UPGRADE["last_transaction"], xid=60)

_IS_RESEND_CHECKED: Final[Any] = Collector.__dict__["is_resend_checked"].fget

_MUTANTS: Final[dict[str, Mutant]] = {
    "published at the switch point": (continuity.check_continues, ">= switch", "> switch", _PUBLISHED),
    "refused below the switch point": (
        *(continuity.check_continues, ">= switch", ">= switch - 1"),
        test_continuity.test_what_lies_before_the_switch_point_is_continued,
    ),
    "the switch of the last promotion": (
        *(TimelineHistory.switch_from, "self.ancestors.get(earlier.timeline)", "self.switches[-1][1]"),
        test_continuity.test_what_lies_before_the_switch_point_is_continued,
    ),
    "any server of a later timeline": (
        *(TimelineHistory.switch_from, "if before == earlier.switches", "if True"),
        partial(test_continuity.test_another_branch_is_refused, test_continuity.TWO, _SUCCESSOR_OF_A_TWIN),
    ),
    "a slot one past the switch point": (continuity.check_slot, "min(switch, ", "min(switch + 1, ", _SLOT),
    "a slot one past the acks": (continuity.check_slot, "safe_lsn + 1)", "safe_lsn + 2)", _SLOT),
    "a column altered at the switch point": (
        *(lost_starts.lost_tables, "altered_before >= switch", "altered_before > switch"),
        test_failover.test_a_column_that_was_found_altered_in_lost_wal_ends_shapes,
    ),
    "confirmed while it is held": (
        *(StandbyStatus.status_update, "-1 if self.is_held else ", ""),
        test_standby_status.test_nothing_is_confirmed_while_it_is_held,
    ),
    "written while it is held": (
        *(
            StandbyStatus.status_update,
            "written_lsn=max(self.flushed_lsn, published)",
            "written_lsn=self.published_lsn",
        ),
        test_standby_status.test_nothing_counts_as_published_while_it_is_held,
    ),
    "a snapshot before its start is visible": (
        *(due_shapes.due_shapes, "entry.starts_visible and ", ""),
        test_due_shapes.test_a_source_that_another_has_replaced_gets_no_more_snapshots,
    ),
    "a snapshot of a replaced source": (
        *(due_shapes._shapes, " or entry.source in replaced", ""),
        test_due_shapes.test_a_source_that_another_has_replaced_gets_no_more_snapshots,
    ),
    "a difference without starts_after": (
        *(ShapeSnapshot.contains, "0 < tx_offset <= self.starts_after or ", ""),
        test_difference_orders.test_transactions_of_before_are_left_out_though_their_xids_come_again,
    ),
    "an earlier incarnation by its xid": (
        *(SnapshotReader.contains, "event.incarnation != found.incarnation", "event.incarnation > found.incarnation"),
        test_snapshot_reader.test_an_earlier_incarnation_is_contained_and_a_later_one_is_not,
    ),
    "acks past the switch point": (
        *(continuity.check_continues, ">= switch", "> switch + 1_000_000"),
        test_failover.test_acks_past_the_switch_point_are_refused,
    ),
    "nothing is resent": (
        *(ResendCheck.handle_transaction, "transaction != self.last", "False"),
        test_failover.test_nothing_is_confirmed_before_the_last_transaction_was_resent,
    ),
    "not held": (
        *(_IS_RESEND_CHECKED, "self._resend_check is None or not self._resend_check.is_pending", "True"),
        test_failover.test_nothing_is_confirmed_before_the_last_transaction_was_resent,
    ),
    "a shape that starts past the switch point": (
        *(lost_starts.lost_starts, "> switch", "> switch + 1_000_000"),
        test_failover.test_a_shape_that_starts_beyond_the_switch_point_misses_nothing,
    ),
    "a shape that starts at the switch point": (
        *(lost_starts.lost_starts, "> switch", ">= switch"),
        test_failover.test_a_shape_that_starts_beyond_the_switch_point_misses_nothing,
    ),
    "a capture of the old server after the seal": (
        *(continuity.check_upgraded, "seal.token != entry.sealed", "False"),
        partial(_UPGRADE, {"entry": replace(test_continuity.UPGRADE["entry"], sealed=None)}),
    ),
    "a slot created after the upgrade": (
        *(continuity.check_upgraded, "seal.misses_changes", "False"),
        partial(_UPGRADE, {"seal": replace(_SEAL, misses_changes=True)}),
    ),
    "published and not acknowledged before an upgrade": (
        *(continuity.check_upgraded, "lsn > last_ack", "lsn > last_ack + 1"),
        partial(_UPGRADE, {"last_ack": 299}),
    ),
    "published where an upgraded server begins": (
        *(continuity.check_upgraded, "known_lsn >= begins", "known_lsn > begins"),
        partial(_UPGRADE, {"known_lsn": 500}),
    ),
    "published past the seal": (
        *(continuity.check_upgraded, "min(seal.confirmed_lsn, confirmed_lsn)", "confirmed_lsn"),
        partial(_UPGRADE, {"known_lsn": 505}),
    ),
    "a copy of the old server, by the xids of pg_upgrade": (
        *(continuity.check_upgraded, "xid, seal.old_xid", "xid, seal.own_xid"),
        partial(_UPGRADE, {"last_transaction": _LATER}),
    ),
    "a 409 to a client that is ahead": (
        *(SeenShape.require_followed, "if self.is_older_than(handle):", "if self.is_behind(tx):"),
        _story(test_serve_ahead.test_client_ahead_is_up_to_date_in_the_end),
    ),
    "a 409 without what was shown": (
        *(beginning.as_conflict, "shown=shown_to(request, seen)", "shown=0"),
        _story(test_serve_ahead.test_begin_again_not_older, is_reached_by_a_cut=False),
    ),
    "what was shown of another source": (
        *(ShapeFacts.is_log_of, "self.log == handle.log if", "True if"),
        _story(test_serve_ahead.test_handle_with_position_of_other_source),
    ),
    "what was shown counts within one digest": (
        *(ShapeFacts.is_log_of, "self.log == handle.log if handle.log else ", ""),
        _story(test_serve_ahead.test_begin_again_not_older, is_reached_by_a_cut=False),
    ),
    "a beginning that waits for nothing": (
        *(ShapeLooks.reached, "while seen.is_behind", "while False and seen.is_behind"),
        _story(test_serve_ahead.test_begin_again_not_older, is_reached_by_a_cut=False),
    ),
    "a beginning that waits without an end": (
        *(ShapeLooks.reached, "self._now_s() >= end_s or ", ""),
        _story(test_serve_ahead.test_begin_again_not_older, is_reached_by_a_cut=False),
    ),
    "a restored log that lacks what was shown": (
        *(SeenShape.proves, "tx in known or", "True or"),
        _story(test_serve_ahead.test_restored_older_log_409),
    ),
    "a client that is ahead follows the log from its end": (
        *(Follower.at, "tx=place, ", ""),
        _story(test_serve_ahead.test_client_ahead_waits_for_what_follows),
    ),
}
_FOUND: Final = (asyncio.TimeoutError, AssertionError, FlushtrackerError, pytest.fail.Exception)


@pytest.mark.parametrize("name", _MUTANTS)
def test_a_fault_of_the_proof_is_found(request: pytest.FixtureRequest, name: str) -> None:
    """By the test that is named for the case, which gets its fixtures."""
    function, old, new, test = _MUTANTS[name]
    fixtures = {each: request.getfixturevalue(each) for each in inspect.signature(test).parameters}
    with mutated(function, old, new), pytest.raises(_FOUND):
        test(**fixtures)
