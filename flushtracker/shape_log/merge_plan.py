"""Which files of a shape log to merge next, so that reading one shape opens little, at a bounded cost.

Appended files each have rows of many shapes. A merge sorts some of them by shape into a **run**: files of which each
has a range of shapes that no other file of the run has. Reading a shape then opens one file of each run, and all files
that are not sorted yet.

A merge takes the appended files, oldest first, and then runs, smallest first, as long as the next run is at most 1.5
times as large as everything taken so far. So a row's run grows by at least two thirds with each merge, and few runs
remain besides large ones. (With a factor of 1, two runs of nearly the same size often remained.) A run that has reached
``sealed_bytes`` is never merged again: it has so many files that each is a small part of it. So each byte is rewritten
a bounded number of times, about 5 in practice, however large the log becomes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
_MOST_OF_TOTAL: Final = 1.5


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """When to merge, and how large runs and their files become; sizes are those of Parquet files.

    Merging starts with ``merge_files`` appended files, or when they have ``merge_share`` of the bytes of all runs, but
    no less than 1 MiB and no more than ``merge_bytes``. One merge takes at most ``merge_bytes`` of them, because it
    holds those in memory, but at least one file.
    """

    merge_files: int = 64
    merge_bytes: int = 32 * MIB
    merge_share: float = 0.01
    sealed_bytes: int = 2048 * MIB
    files_per_run: int = 128
    least_file_bytes: int = MIB // 16

    def file_bytes(self, run_bytes: int) -> int:
        """The size of each file of a run."""
        return max(run_bytes // self.files_per_run, self.least_file_bytes)


@dataclass(frozen=True, slots=True)
class Appended:
    """A file that is not part of a run; ``age_rank`` orders files by when they were written."""

    path: str
    bytes: int
    age_rank: int


@dataclass(frozen=True, slots=True)
class Merge:
    """The appended files and the runs that become one new run."""

    paths: tuple[str, ...]
    runs: frozenset[int]


def next_merge(appended: Iterable[Appended], runs: Mapping[int, int], settings: MergeSettings) -> Merge | None:
    """The next merge, or ``None`` if none is due. ``runs`` are the bytes of each run.

    >>> settings = MergeSettings(merge_files=2, sealed_bytes=500)
    >>> files = [Appended("a", 60, 1), Appended("b", 50, 2)]
    >>> next_merge(files, {1: 100, 2: 400, 3: 600}, settings).runs
    frozenset({1})
    >>> next_merge(files[:1], {1: 100}, settings) is None
    True
    """
    files = sorted(appended, key=lambda file: (file.age_rank, file.path))
    enough = min(settings.merge_bytes, max(MIB, settings.merge_share * sum(runs.values())))
    if len(files) < settings.merge_files and sum(file.bytes for file in files) < enough:
        return None
    total, paths = 0, list[str]()
    for file in files:
        if paths and total + file.bytes > settings.merge_bytes:
            break
        paths.append(file.path)
        total += file.bytes
    chosen = set[int]()
    for run, size in sorted(runs.items(), key=lambda each: (each[1], each[0])):
        if size > _MOST_OF_TOTAL * total or size >= settings.sealed_bytes:
            break
        chosen.add(run)
        total += size
    return Merge(tuple(paths), frozenset(chosen))
