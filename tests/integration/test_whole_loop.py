"""Capture, tracker and writers are each killed once under load: nothing is lost, and all that was decided was right."""

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.brokers import Broker
from tests.support.loop_watch import LoopWatch
from tests.support.loop_workload import LoopWorkload
from tests.support.oldest_servers import LoopOnOldestServers
from tests.support.seeds import in_turn
from tests.support.server_versions import runs_here
from tests.support.whole_loop import Part, WholeLoop

_KILLED: tuple[Part, ...] = ("tracker", "writers", "capture")


@pytest.mark.parametrize("servers", in_turn(["oldest", "newest"] if runs_here() else ["newest"]))
def test_what_the_loop_decides_under_kills_is_what_the_models_allow(
    postgres_folder: Path, broker: Broker, servers: str
) -> None:
    """Every batch's ack is the greatest that is safe, judged from the topics, the checkpoint and the ack table.

    Every commit to the shape log, and every notification, is a step of that model.
    """
    loop_of = LoopOnOldestServers if servers == "oldest" else WholeLoop
    loop = loop_of(postgres_folder, flush="batch", write_unit="txn")
    loop.shared_broker = None if servers == "oldest" else broker
    with ExitStack() as stack:
        stack.enter_context(loop)
        watch = stack.enter_context(closing(LoopWatch(loop)))
        # Few transactions: what is killed needs the processor to start again.
        with LoopWorkload(lambda: loop.server, seed=1, longest_pause_s=0.6) as workload:
            for part in _KILLED:
                watch.await_lsn(watch.confirmed_lsn + 1)
                loop.kill(part)
            watch.await_lsn(watch.confirmed_lsn + 1)
        assert workload.failure is None
        watch.rest()
    assert watch.checked == loop.truth.transactions > 0
    assert watch.trace.confirming > len(_KILLED)
    assert watch.trace.batches > watch.trace.confirming
    assert watch.trace.resent > 0
    assert watch.confirmations.connections >= 2
    assert watch.confirmations.confirmations > len(_KILLED)
    steps = watch.log_trace.counts
    assert steps["claims"] == 2
    assert min(steps["appends"], steps["notifications"]) > len(_KILLED)
