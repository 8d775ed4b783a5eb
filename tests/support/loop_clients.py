"""``LoopClients``: clients of all shapes of a ``Loop``, by servers with tails and without one."""

from functools import partial

from flushtracker.config.serve_config import TailConfig
from flushtracker.shape_log.table.reader import read_shape
from tests.support.log_follower import row_texts
from tests.support.loop import DEADLINE_S, Loop
from tests.support.tail_readers import TailReaders
from tests.support.waiting import wait_until


class LoopClients(TailReaders):
    """A context manager, in which the loop may be at fault."""

    def __init__(self, loop: Loop, seed: int) -> None:
        kafka = loop.rig.config.kafka
        tail = TailConfig(kafka.bootstrap_servers, kafka.topics.shape_changes)
        super().__init__(f"{loop.place}/log", tail, [shape.id for shape in loop.content.shapes], seed)
        self._loop = loop

    def await_rows(self) -> None:
        """With the loop at rest: each has the rows of its shape soon; some have been ahead of the log."""
        for shape in self._loop.content.shapes:
            expected = row_texts(read_shape(str(self._loop.log), shape.id).rows.to_pylist())
            what = f"the clients of {shape.id} have its rows"
            wait_until(partial(self.have, shape.id, expected), what, DEADLINE_S)
        assert self.ahead > 0, "no client was shown a change before the log had it"
