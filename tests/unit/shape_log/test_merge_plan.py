"""Which files are merged when: the cost of months, and how many runs there are at any moment."""

import random

from flushtracker.shape_log.merge_plan import MIB, MergeSettings

_SETTINGS = MergeSettings()


class Log:
    """The files of a shape log by their sizes: each merge writes what it takes."""

    def __init__(self) -> None:
        self.appended: list[int] = []
        self.runs: dict[int, int] = {}
        self.written = self.rewritten = 0
        self._number = 0

    def append(self, size: int) -> None:
        self._number += 1
        self.written += size
        self.appended.append(size)
        if _SETTINGS.is_due(self.appended, self.runs.values()):
            taken = sum(self.appended)
            merged = taken + sum(self.runs.pop(run) for run in _SETTINGS.runs_to_merge(taken, self.runs))
            self.rewritten += merged
            self.runs[self._number] = merged
            self.appended.clear()

    @property
    def growing(self) -> list[int]:
        return [size for size in self.runs.values() if size < _SETTINGS.sealed_bytes]


def test_a_month_of_small_appends_costs_each_byte_a_few_rewrites() -> None:
    """An append each second; the cost and the growing runs do not depend on how long it goes on."""
    log, most_growing = Log(), 0
    draw = random.Random(1)  # noqa: S311  a reproducible load
    for _ in range(200_000):
        log.append(draw.randint(MIB // 16, MIB // 4))
        most_growing = max(most_growing, len(log.growing))
    assert most_growing <= 8
    assert log.rewritten / log.written <= 5.5
    assert all(size <= 2 * _SETTINGS.sealed_bytes for size in log.runs.values())


def test_reading_one_shape_of_a_large_log_opens_two_percent_at_most() -> None:
    """At whatever moment: one file of each run, which is a small part of it, and all that is not merged yet."""
    log = Log()
    draw = random.Random(2)  # noqa: S311  a reproducible load
    for _ in range(20_000):
        log.append(draw.randint(1, 2 * MIB))
        merged, waiting = sum(log.runs.values()), sum(log.appended)
        if merged > 512 * MIB:
            opened = waiting + sum(_SETTINGS.file_bytes(size) for size in log.runs.values())
            assert opened <= 0.02 * (merged + waiting)


def test_quiet_log_is_left_alone() -> None:
    """Few small files cost little to open."""
    assert not _SETTINGS.is_due([100], [100, 100])
    assert not _SETTINGS.is_due([], [100, 100])


def test_one_merge_takes_a_bounded_number_of_runs() -> None:
    """Whatever there is: each has an open file and a block in memory."""
    assert len(_SETTINGS.runs_to_merge(100, dict.fromkeys(range(1000), 100))) == 12
