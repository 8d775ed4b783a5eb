"""Faults in the proof that a source goes on, and in what heals a shape, that are found with a server."""

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres import failover_lacks
from flushtracker.postgres.slot import read_slot
from flushtracker.postgres.snapshot_export import exported_table
from tests.integration import test_capture_takeover, test_failover, test_snapshot_reads
from tests.integration.test_failover import pair  # noqa: F401  a fixture, which pytest must find here
from tests.integration.test_snapshot_reads import server  # noqa: F401  likewise
from tests.support.failover_pair import FailoverPair
from tests.support.mutated import mutated

_FOUND = (AssertionError, pytest.fail.Exception)


def test_a_temporary_slot_that_is_accepted_is_found(postgres: LocalPostgres) -> None:
    """A promotion drops it."""
    with mutated(read_slot, 'if facts["temporary"]', "if False"), pytest.raises(_FOUND):
        test_capture_takeover.test_a_temporary_slot_is_refused(postgres)


def test_a_temporary_copy_that_counts_is_found(
    pair: FailoverPair,  # noqa: F811  the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing would be said of it before a promotion drops it."""
    query, part = failover_lacks._STANDBY, " WHEN temporary THEN 'temporary'"
    assert part in query
    monkeypatch.setattr(failover_lacks, "_STANDBY", query.replace(part, ""))
    with pytest.raises(AssertionError):
        test_failover.test_a_copy_that_a_promotion_would_drop_is_named(pair)


def test_a_snapshot_that_is_taken_before_the_lock_is_found(server: LocalPostgres) -> None:  # noqa: F811  the fixture
    """It lacks all rows, and a difference from it would delete them."""
    lock = "rows(connection, sql.SQL"
    with mutated(exported_table, lock, f"rows(connection, _EXPORT); {lock}"), pytest.raises(_FOUND):
        test_snapshot_reads.test_a_rewrite_that_the_lock_has_waited_for_hides_no_row(server)
