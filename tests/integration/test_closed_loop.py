"""What the closed loop's writers and shapes must bear, each as a story without load."""

import pytest

from flushtracker.local.postgres import LocalPostgres
from tests.support.capture_loop_parts import Tracker, Writers
from tests.support.capture_rig import DEADLINE_S, CaptureRig, RigOn
from tests.support.closed_loop import ClosedLoop, copy_of, prepare

_TWO_BUCKETS = "INSERT INTO rows (bucket, note) VALUES (1, 'one'), (2, 'two')"


@pytest.fixture
def rig(postgres: LocalPostgres, rig_on: RigOn) -> CaptureRig:
    """A rig as the closed loop has it."""
    rig = rig_on(postgres)
    prepare(rig)
    return rig


def test_a_shape_has_its_first_rows_although_a_transaction_is_open_when_capture_starts(rig: CaptureRig) -> None:
    """Its rows from before are in its log, so that a later deletion finds them."""
    rig.server.execute(_TWO_BUCKETS)
    session = rig.server.connect()
    session.autocommit = False
    with session.cursor() as cursor:
        cursor.execute(_TWO_BUCKETS)
        capture = rig.start()
        rig.wait(rig.fragments, "fragments")
        session.commit()
    session.close()
    rig.wait(lambda: rig.registry().keys() == {"all", "ones", "others"}, "the shapes")
    rig.execute_and_wait("DELETE FROM rows WHERE id = 1")
    capture.stop()
    assert copy_of(rig, "all") == {2: ("2", "two"), 3: ("1", "one"), 4: ("2", "two")}
    assert copy_of(rig, "ones") == {3: ("1", "one")}


def test_writers_flush_changes_of_which_no_fragment_was_published(rig: CaptureRig) -> None:
    """Capture is killed between two events of its first fragment: the changes are there, the fragment is not."""
    rig.server.execute(_TWO_BUCKETS)
    loop = ClosedLoop(rig, 1, Writers, Tracker)
    # Entries of a table, three shapes and the source, and the changes of "all" and "ones", which are confirmed before
    # those of "others", which depends on "ones".
    process = rig.start_process("tests.support.killed_capture", "between two events of a fragment", "7")
    assert process.wait(DEADLINE_S) == -9, rig.log()[-2000:]
    assert not rig.fragments()
    loop.step(chance=1.0)
    assert loop.writers.flushed.keys() == {"all", "ones"}
