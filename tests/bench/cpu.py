"""The CPU time of a program with all its processes."""

import os
from pathlib import Path


def cpu_seconds(root: int | None = None) -> float:
    """Of process ``root`` (this one), and all that it has started, such as a JVM and its workers, also ended ones."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, found = 0, [root or os.getpid()]
    while found:
        pid = found.pop()
        total += ticks.get(pid, 0)
        found += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")
