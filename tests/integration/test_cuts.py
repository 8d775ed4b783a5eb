"""Reads of several shapes while TPC-B runs and programs are killed: the sums of its four tables are equal in each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import CutMissingError, ShapeEndedError, SnapshotMissingError
from flushtracker.shape_log.table.reader import ShapesRead, read_shapes
from tests.support.brokers import Broker
from tests.support.cut_clients import CutReader
from tests.support.loop import DEADLINE_S, Loop, Part
from tests.support.loop_workload import TPCB
from tests.support.seeds import every, in_turn
from tests.support.waiting import wait_until

_AMOUNTS: Final = {"accounts": "abalance", "tellers": "tbalance", "branches": "bbalance", "history": "delta"}
_SPARE: Final = TPCB.shapes[-1].id


def read(loop: Loop, *shape_ids: str) -> ShapesRead | None:
    """The shapes as of the last cut; ``None`` as long as there is none."""
    loop.raise_failure()
    try:
        return read_shapes(str(loop.log), shape_ids, shapes=str(loop.registry_table))
    except (CutMissingError, SnapshotMissingError):
        return None


def await_read(loop: Loop, *shape_ids: str, after: int = -1) -> ShapesRead:
    """The first read with a cut above ``after``."""

    def past() -> ShapesRead | None:
        found = read(loop, *shape_ids)
        return found if found is not None and found.lsn > after else None

    return wait_until(past, f"a cut above {after}", DEADLINE_S)


def sums(read: ShapesRead) -> Mapping[str, int]:
    """The sum of each shape's amounts."""
    return {
        shape_id: sum(int(each) for each in found.rows[_AMOUNTS[shape_id.removeprefix("spare ")]].to_pylist())
        for shape_id, found in read.shapes.items()
    }


def are_in_the_registry_table(loop: Loop) -> bool:
    shapes = str(loop.registry_table)
    found = RegistryTable(shapes).entries().entries if RegistryTable.exists(shapes) else {}
    return {*_AMOUNTS, _SPARE} <= {shape_id for _, kind, shape_id in found if kind == "shape"}


@every(4, 2)
@pytest.mark.parametrize("killed", in_turn(["writers", "tracker", "capture"]))
def test_sums_are_equal_in_every_read_of_several_shapes(postgres_folder: Path, broker: Broker, killed: Part) -> None:
    """Also of a shape that had everything when it was removed: it is read with the others, or is said to have ended.

    Once nothing is written any more, a read has the rows of the database. Clients of HTTP, who combine what they have
    up to the least of their LSNs, have equal sums at each, too.
    """
    loop = Loop(
        postgres_folder,
        TPCB,
        running_broker=broker,
        seed=1,
    )
    with loop:
        loop.wait(lambda: are_in_the_registry_table(loop), "the shapes in the registry table")
        first = await_read(loop, *_AMOUNTS, _SPARE).lsn
        clients = CutReader(str(loop.log), str(loop.registry_table), _AMOUNTS)
        clients.start()
        loop.kill(killed)
        both = await_read(loop, *_AMOUNTS, _SPARE, after=first)
        assert len({*sums(both).values()}) == 1, sums(both)
        loop.rig.define(*loop.defined[:-1])

        def has_ended() -> bool:
            try:
                found = read(loop, *_AMOUNTS, _SPARE)
            except ShapeEndedError:
                return True
            assert found is None or len({*sums(found).values()}) == 1
            return False

        wait_until(has_ended, "the removal", DEADLINE_S, pause_s=0.1)
        wait_until(lambda: not clients.is_running or len(clients.sums) > 2, "sums of clients", DEADLINE_S)
        assert loop.load is not None
        loop.load.stop()
        ((total,),) = loop.server.execute("SELECT sum(delta) FROM history")
        last = await_read(loop, *_AMOUNTS, after=both.lsn)
        while sums(last)["history"] != total:
            assert len({*sums(last).values()}) == 1
            last = await_read(loop, *_AMOUNTS, after=last.lsn)
        assert {*sums(last).values()} == {total}
        wait_until(lambda: not clients.is_running or last.lsn <= max(clients.sums, default=0), "clients", DEADLINE_S)
        clients.stop()
        assert all(len({*each.values()}) == 1 for each in clients.sums.values()), clients.sums
        assert {*clients.sums[max(clients.sums)].values()} == {total}
        with pytest.raises(ShapeEndedError, match=_SPARE):
            read(loop, *_AMOUNTS, _SPARE)
