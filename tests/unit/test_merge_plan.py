"""Which files are merged when: the cost of months, and how many runs there are at any moment."""

import random

from flushtracker.shape_log.merge_plan import MIB, Appended, MergeSettings, next_merge

_SETTINGS = MergeSettings()


class Log:
    """The files of a shape log by their sizes: each merge writes what it takes."""

    def __init__(self, settings: MergeSettings = _SETTINGS) -> None:
        self.settings = settings
        self.appended: list[Appended] = []
        self.runs: dict[int, int] = {}
        self.written = self.rewritten = 0
        self._number = 0

    def append(self, size: int) -> None:
        self._number += 1
        self.written += size
        self.appended.append(Appended(f"{self._number:09}", size, self._number))
        while plan := next_merge(self.appended, self.runs, self.settings):
            taken = sum(file.bytes for file in self.appended if file.path in plan.paths)
            assert taken <= self.settings.merge_bytes or len(plan.paths) == 1
            assert list(plan.paths) == [file.path for file in self.appended[: len(plan.paths)]]
            self.appended = self.appended[len(plan.paths) :]
            size = taken + sum(self.runs.pop(run) for run in plan.runs)
            self.rewritten += size
            self.runs[self._number] = size

    @property
    def growing(self) -> list[int]:
        return [size for size in self.runs.values() if size < self.settings.sealed_bytes]


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
        merged, waiting = sum(log.runs.values()), sum(file.bytes for file in log.appended)
        if merged > 512 * MIB:
            opened = waiting + sum(log.settings.file_bytes(size) for size in log.runs.values())
            assert opened <= 0.02 * (merged + waiting)


def test_backlog_is_merged_in_bounded_parts() -> None:
    """Each merge holds its appended files in memory. A file that is larger than that is merged alone."""
    settings = MergeSettings(merge_bytes=100, sealed_bytes=1000)
    files = [Appended(f"{number}", size, number) for number, size in enumerate([60, 60, 250, 30, 30])]
    found = []
    while files and (plan := next_merge(files, {}, settings)):
        found.append(plan.paths)
        files = [file for file in files if file.path not in plan.paths]
    assert found == [("0",), ("1",), ("2",)]


def test_quiet_log_is_left_alone() -> None:
    """Few small files cost little to open."""
    assert next_merge([Appended("a", 100, 1)], {1: 100, 2: 100}, _SETTINGS) is None
    assert next_merge([], {1: 100, 2: 100}, _SETTINGS) is None
