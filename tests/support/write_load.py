"""Changes that a test gives the writers, and the rows that they must have stored."""

import random

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.wal.log_offset import LogOffset
from tests.support.shape_transactions import Transactions
from tests.support.write_folder import WriteFolder

FILES = 3


class Load:
    """Three shapes, whose events come in files that cut transactions anywhere."""

    def __init__(self, seed: int = 1) -> None:
        rng = random.Random(seed)  # noqa: S311  a reproducible test load
        self.shapes = {shape_id: Transactions(shape_id, rng) for shape_id in ("a", "b", "c")}
        self.files: list[list[ShapeChangesEvent]] = [[] for _ in range(FILES)]
        for stream in self.shapes.values():
            stream.grow(12)
            events = list(stream.events(list(stream.items)))
            cuts = sorted(rng.sample(range(1, len(events)), FILES - 1))
            for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(events)], strict=True)):
                self.files[number] += events[start:end]

    def write(self, job: WriteFolder) -> None:
        for file in self.files:
            job.write(file)

    def check(self, job: WriteFolder) -> None:
        """The log has each change once, and the last notification of each shape is its last commit."""
        said: dict[str, LogOffset] = {}
        for file in job.notified():
            said |= file
        for shape_id, stream in self.shapes.items():
            assert job.log_rows(shape_id) == stream.expected_rows()
            assert said[shape_id] == LogOffset.last_of(max(stream.items))
