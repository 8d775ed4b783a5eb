"""Commit times that a replication origin sets, on a real server: the past, one moment for all, infinity, BC."""

from datetime import datetime, timedelta, timezone
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.shape_log.table.reader import read_shape, read_shape_log
from flushtracker.shape_log.table.retention import RetentionPolicy
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_rig import USERS, run_in_transaction, shape
from tests.support.local_loop import LocalLoop
from tests.support.waiting import wait_until

_TIMES: Final = (
    *("2001-02-03", "2001-02-03", "2001-02-03", "2200-01-01", "infinity", "-infinity", "0044-03-15 BC", "12000-01-01"),
    *("4713-01-01 BC", "294276-12-31 23:59:59.999999", "0001-01-01", "9999-12-31 23:59:59.999999"),
)
_HISTORY: Final = timedelta(minutes=5)


def test_history_is_kept_and_capture_goes_on_whatever_time_an_origin_gives_its_commits(loop: LocalLoop) -> None:
    """A follower keeps its position for the time of ``retain.history`` by the writer's clock, not longer.

    Each start of capture reads what is not confirmed again, so these times must not end it then either.
    """
    rig = loop.rig
    rig.server.execute(USERS, "CREATE TABLE other (n int)", "SELECT pg_replication_origin_create('peer')")
    rig.server.execute("INSERT INTO users VALUES (1, '')")
    rig.define(shape("users"))
    loop.start()
    settle(loop, "")
    position = read_shape_log(str(loop.log), "users").position
    for number, time in enumerate(_TIMES):
        if number == len(_TIMES) // 2:
            loop.stop()
        changes = [f"UPDATE users SET region = '{number}'", "INSERT INTO other VALUES (1)"]  # noqa: S608  constants
        for change in changes:
            run_in_transaction(
                rig.server,
                [
                    "SELECT pg_replication_origin_session_setup('peer')",
                    f"SELECT pg_replication_origin_xact_setup('0/{number + 1}', '{time}')",
                    change,
                ],
            )
    loop.start()
    settle(loop, str(len(_TIMES) - 1))
    log, now = str(loop.log), datetime.now(timezone.utc)
    upkeep = ShapeLogUpkeep(log, f"{log}_shapes", retain=RetentionPolicy(_HISTORY, least_dropped=1))
    assert upkeep.run(now).folded_shapes == 0
    names = [row["value"] for row in read_shape_log(log, "users", position).rows.to_pylist() if row["value"]]
    assert len(names) == len(_TIMES)
    assert upkeep.run(now + _HISTORY + timedelta(minutes=1)).folded_shapes == 1
    assert read_shape(log, "users").rows["region"].to_pylist() == [str(len(_TIMES) - 1)]
    loop.stop()


def settle(loop: LocalLoop, name: str) -> None:
    """Until the log has the row of the table as it is now."""

    def has_row() -> bool:
        loop.step()
        try:
            found = read_shape(str(loop.log), "users").rows.to_pylist()
        except FlushtrackerError:
            return False
        return bool(found == [{"id": "1", "region": name}])

    wait_until(has_row, f"the row with the region {name!r}", 60, pause_s=0.1)
    assert read_shape(str(loop.log), "users").bound != LogOffset.before_all()
