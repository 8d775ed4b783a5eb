"""Reads of several shapes while TPC-B runs and programs are killed: the sums of its four tables are equal in each."""

from pathlib import Path

import pytest

from flushtracker.errors import ShapeEndedError
from tests.support.brokers import Broker
from tests.support.cut_clients import CutReader
from tests.support.seeds import every, in_turn
from tests.support.tpcb_loop import AMOUNTS, DEADLINE_S, SPARE, TpcbLoop, sums
from tests.support.waiting import wait_until
from tests.support.whole_loop import Part


@every(2, 1)
@pytest.mark.parametrize("killed", in_turn(["writers", "tracker", "capture"]))
def test_sums_are_equal_in_every_read_of_several_shapes(postgres_folder: Path, broker: Broker, killed: Part) -> None:
    """Also of a shape that had everything when it was removed: it is read with the others, or is said to have ended.

    Once nothing is written any more, a read has the rows of the database. Clients of HTTP, who combine what they have
    up to the least of their LSNs, have equal sums at each, too.
    """
    loop = TpcbLoop(postgres_folder, broker, seed=1)
    with loop:
        first = loop.await_read(*AMOUNTS, SPARE).lsn
        clients = CutReader(str(loop.log), str(loop.folder / "log_shapes"), AMOUNTS)
        clients.start()
        loop.kill(killed)
        read = loop.await_read(*AMOUNTS, SPARE, after=first)
        assert len({*sums(read).values()}) == 1, sums(read)
        loop.define(*AMOUNTS)

        def has_ended() -> bool:
            try:
                read = loop.read(*AMOUNTS, SPARE)
            except ShapeEndedError:
                return True
            assert read is None or len({*sums(read).values()}) == 1
            return False

        wait_until(has_ended, "the removal", DEADLINE_S, pause_s=0.1)
        wait_until(lambda: not clients.is_alive() or len(clients.sums) > 2, "sums of clients", DEADLINE_S)
        loop.stop_work()
        ((total,),) = loop.server.execute("SELECT sum(delta) FROM history")
        last = loop.await_read(*AMOUNTS, after=read.lsn)
        while sums(last)["history"] != total:
            assert len({*sums(last).values()}) == 1
            last = loop.await_read(*AMOUNTS, after=last.lsn)
        assert {*sums(last).values()} == {total}
        wait_until(lambda: not clients.is_alive() or last.lsn <= max(clients.sums, default=0), "clients", DEADLINE_S)
        clients.stop()
        assert all(len({*each.values()}) == 1 for each in clients.sums.values()), clients.sums
        assert {*clients.sums[max(clients.sums)].values()} == {total}
        with pytest.raises(ShapeEndedError, match=SPARE):
            loop.read(*AMOUNTS, SPARE)
