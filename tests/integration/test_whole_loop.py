"""Capture, tracker and writers are each killed once under load: nothing is lost, and all that was decided was right."""

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.brokers import Broker
from tests.support.loop import Loop, Part
from tests.support.loop_clients import LoopClients
from tests.support.loop_watch import LoopWatch
from tests.support.oldest_servers import oldest_broker, oldest_server
from tests.support.seeds import every
from tests.support.server_versions import runs_here

_KILLED: tuple[Part, ...] = ("tracker", "writers", "capture")


@pytest.mark.parametrize(
    "servers",
    [*[pytest.param("oldest", marks=every(6, 2))] * runs_here(), pytest.param("newest", marks=every(6, 5))],
)
def test_what_the_loop_decides_under_kills_is_what_the_models_allow(
    postgres_folder: Path, broker: Broker, servers: str
) -> None:
    """Every batch's ack is the greatest that is safe, judged from the topics, the checkpoint and the ack table.

    Every commit to the shape log, and every notification, is a step of that model. Clients of HTTP servers, two of
    which have a tail, are ahead of the log, get no change twice, and keep what they have been shown.
    """
    with ExitStack() as stack:
        server = None
        if servers == "oldest":
            server = oldest_server(postgres_folder / "server")
            broker = stack.enter_context(oldest_broker(postgres_folder / "broker"))
        loop = Loop(
            postgres_folder,
            servers=server,
            running_broker=broker,
            settings={"write": {"write_unit": "txn"}},
        )
        stack.enter_context(loop)
        watch = stack.enter_context(closing(LoopWatch(loop)))
        with LoopClients(loop, seed=1) as clients:
            # Few transactions: what is killed needs the processor to start again.
            with loop.workload(seed=1, longest_pause_s=0.6):
                for part in _KILLED:
                    watch.await_lsn(watch.confirmed_lsn + 1)
                    loop.kill(part)
                    clients.raise_failure()
                watch.await_lsn(watch.confirmed_lsn + 1)
            watch.rest()
            clients.await_rows()
    assert watch.checked == loop.truth.transactions > 0
    assert watch.trace.confirming > len(_KILLED)
    assert watch.trace.batches > watch.trace.confirming
    assert watch.trace.resent > 0
    assert watch.confirmations.connections >= 2
    assert watch.confirmations.confirmations > len(_KILLED)
    steps = watch.log_trace.counts
    assert steps["claims"] == 2
    assert min(steps["appends"], steps["notifications"]) > len(_KILLED)
