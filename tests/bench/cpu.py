"""The processes of a program, their CPU time and their memory."""

import os
import re
from pathlib import Path


def cpu_seconds(root: int | None = None) -> float:
    """CPU seconds of process ``root`` (this one) and all that it has started, ended or not, such as a JVM."""
    ticks = _ticks()
    return sum(ticks[pid][1] for pid in _below(root or os.getpid(), ticks)) / os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """The process and all that it has started, and they."""
    return _below(root, _ticks())


def proportional_mb(pid: int) -> float:
    """The proportional set size of a process, in which a page that others share counts in part.

    Raises:
        OSError: the process has ended.
    """
    size = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(size[1]) / 1024 if size else 0.0


def process_name(pid: int) -> str:
    """The name of its program, such as ``java``; raises ``OSError`` if it has ended."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _ticks() -> dict[int, tuple[int, int]]:
    """Each process's parent, and the clock ticks that it and its ended children have used."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(stat.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return found


def _below(root: int, ticks: dict[int, tuple[int, int]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in ticks.items():
        children.setdefault(parent, []).append(pid)
    found = [root] if root in ticks else []
    for pid in found:
        found += children.get(pid, [])
    return found
