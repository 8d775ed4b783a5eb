"""``make sums``: the SHA-256 of each jar that a lock has and its file of sums has not, beside the lock.

A jar is fetched as a user's would be, from Maven Central or ``FLUSHTRACKER_MAVEN``. A sum that is there is never
changed, since a version that was released does not change; it is removed with its jar.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from flushtracker.jvm.ivy_jars import run_ivy
from flushtracker.jvm.jar_lock import read_lock, read_sums, sha256_of, sums_file
from flushtracker.jvm.java import check_java

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = sorted([*(ROOT / "flushtracker/jvm").glob("*_jars.xml"), *(ROOT / "tests/support").glob("*_jars.xml")])


def add_sums(lock: Path) -> list[str]:
    """Write the sums of a lock; returns the names of the jars that are new. Ends the program if one is not found."""
    before = read_sums(lock) if sums_file(lock).exists() else {}
    known = dict(before)
    locked: dict[str, str] = {}
    for configuration, jars in read_lock(lock).items():
        names = [jar.file_name for jar in jars]
        if set(names) - known.keys():
            known = {**_fetched(lock, configuration, names), **known}
        locked |= {name: known[name] for name in names}
    sums_file(lock).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(locked.items())))
    return sorted(locked.keys() - before.keys())


def _fetched(lock: Path, configuration: str, names: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="flushtracker-sums-") as scratch:
        pattern = f"{scratch}/jars/[artifact]-[revision].[ext]"
        repository = os.environ.get("FLUSHTRACKER_MAVEN")
        log = run_ivy(lock, configuration, check_java().launcher, Path(scratch), repository, pattern)
        found = {file.name: sha256_of(file) for file in Path(scratch, "jars").glob("*.jar")}
    if missing := set(names) - found.keys():
        raise SystemExit(f"{log}\nnot found: {', '.join(sorted(missing))}")
    return found


def main() -> int:
    """Add what is new to the sums of all locks of the checkout."""
    for lock in LOCKS:
        for name in add_sums(lock):
            sys.stdout.write(f"{sums_file(lock).name}: {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
