"""Which files of a shape log to merge next, so that reading one shape opens few files, at a bounded cost.

An appended file has rows of many shapes. A merge sorts some files by shape into a **run**: a set of files with disjoint
ranges of shapes. Reading a shape then opens one file of each run, and all unsorted files.

A merge takes the waiting appended files, as many as fit in memory. Then it takes runs, smallest first, as long as the
next run is at most 1.5 times as large as everything taken so far. So a row's run grows by at least two thirds with each
merge, and few runs remain besides large ones. (With a factor of 1, two runs of nearly the same size often remained.) A
run that has reached ``sealed_bytes`` is never merged again: each of its files is then a small part of it. So each byte
is rewritten a bounded number of times, about 5 in practice, however large the log becomes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
_MOST_OF_TOTAL: Final = 1.5
_MOST_RUNS: Final = 12
"""A merge holds a file of each open."""


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """When to merge, and how large runs and their files become; sizes are those of Parquet files.

    Merging starts with ``merge_files`` appended files, or when they have ``merge_share`` of the bytes of all runs, but
    no less than 1 MiB and no more than ``merge_bytes``. One merge sorts ``sorted_bytes`` of appended rows in memory,
    uncompressed. A larger file is divided first.
    """

    merge_files: int = 64
    merge_bytes: int = 32 * MIB
    merge_share: float = 0.01
    sorted_bytes: int = 96 * MIB
    sealed_bytes: int = 2048 * MIB
    files_per_run: int = 128
    least_file_bytes: int = MIB // 16

    def file_bytes(self, run_bytes: int) -> int:
        return max(run_bytes // self.files_per_run, self.least_file_bytes)

    def is_due(self, appended: Collection[int], runs: Collection[int]) -> bool:
        """Whether to merge; ``appended`` and ``runs`` are sizes in bytes."""
        enough = min(self.merge_bytes, max(MIB, self.merge_share * sum(runs)))
        return len(appended) >= self.merge_files or sum(appended) >= enough

    def runs_to_merge(self, appended_bytes: int, runs: Mapping[int, int]) -> frozenset[int]:
        """The runs to merge with ``appended_bytes`` of appended files; ``runs`` has the size of each, in bytes.

        >>> sorted(MergeSettings(sealed_bytes=500).runs_to_merge(110, {1: 100, 2: 400, 3: 600}))
        [1]
        """
        total, chosen = appended_bytes, set[int]()
        for run, size in sorted(runs.items(), key=lambda each: (each[1], each[0])):
            if size > _MOST_OF_TOTAL * total or size >= self.sealed_bytes or len(chosen) == _MOST_RUNS:
                break
            chosen.add(run)
            total += size
        return frozenset(chosen)
