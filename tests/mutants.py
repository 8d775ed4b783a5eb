"""``make mutants``: change the code in many ways, one at a time, and list the changes that no fast test notices.

``python -m tests.mutants [--sample 1000] [--seeds N ...] [FILES ...]`` judges random samples of the files' mutants, as
``tests/support/mutant_judge.py`` describes. The same code, seed and files give the same sample. mutmut makes the
mutants, in a copy of the repository, ``mutants/``, and shows one: ``python -m mutmut show NAME``.

The copy also keeps what has been learned and judged. While no source or test changes, another run goes on from there:
after Ctrl-C, with further seeds, or with ``--long``. That adds the tests marked ``long``, and judges again what no fast
test notices.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from mutmut.__main__ import collect_source_file_mutation_data, create_mutants
from mutmut.configuration import config
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir

from tests.support.mutant_judge import FOUND, SAMPLE, VERDICTS, print_line, read_verdicts

_COPY: Final = Path("mutants")
_DIGEST: Final = _COPY / "digest.txt"
"""The digest of what the copy was made from, written when it is whole."""


def main() -> int:
    """Judge what the command line asks for; returns pytest's exit code."""
    options = _options()
    config().only_mutate = options.files or config().only_mutate
    digest = digest_of([Path("flushtracker"), Path("tests"), Path("pyproject.toml")], config().only_mutate)
    if not _DIGEST.exists() or _DIGEST.read_text() != digest:
        _generate()
        _DIGEST.write_text(digest)
    names = sorted(name for _, name, _ in collect_source_file_mutation_data(mutant_names=[])[0])
    sample = sample_of(names, options.seeds, options.sample)
    print_line(f"seeds {' '.join(map(str, options.seeds))}: {len(sample):,} of {len(names):,} mutants")
    (_COPY / SAMPLE).write_text("\n".join(sample))
    code = _judge(options.tests or config().pytest_add_cli_args_test_selection, with_long=options.long)
    _report(sample)
    return code


def digest_of(paths: Iterable[Path], patterns: Iterable[str]) -> str:
    """The digest of the files at or below ``paths``, and of what is mutated."""
    digest = hashlib.sha256("\n".join(patterns).encode())
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"\0{file}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def sample_of(names: list[str], seeds: Iterable[int], size: int) -> list[str]:
    """``size`` mutants for each seed; those of an earlier seed are not repeated."""
    samples = (random.Random(seed).sample(names, min(size, len(names))) for seed in seeds)  # noqa: S311
    return list(dict.fromkeys(name for sample in samples for name in sample))


def _generate() -> None:
    # mutmut would keep what an interrupted run, or one for other files, has left.
    shutil.rmtree(_COPY, ignore_errors=True)
    _COPY.mkdir()
    with redirect_stdout(sys.stderr):
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(os.cpu_count() or 1)


def _judge(tests: list[str], *, with_long: bool) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.mutant_judge", "--capture=no", "-q"]
    command += ["--basetemp=tmp", *config().pytest_add_cli_args, *tests]
    command += ["--judge-again"] if with_long else ["-m", "not long and not soak"]
    # In the copy, `python -m` imports the mutants before the original.
    with subprocess.Popen(command, cwd=_COPY) as pytest:
        try:
            return pytest.wait()
        except KeyboardInterrupt:  # pytest gets it, too, and ends what it has started
            return pytest.wait()


def _report(sample: list[str]) -> None:
    verdicts = read_verdicts(_COPY / VERDICTS)
    judged = {name: verdicts[name][0] for name in sample if name in verdicts}
    for verdict, name in sorted((verdict, name) for name, verdict in judged.items()):
        if verdict not in FOUND:
            print_line(f"{verdict}: {name}")
    rooms = Counter((name.split(".")[1], verdict) for name, verdict in judged.items())
    for room in sorted({room for room, _ in rooms}):
        print_line(
            f"  {room}: {_counted({verdict: count for (each, verdict), count in rooms.items() if each == room})}"
        )
    print_line(_counted(Counter(judged.values())))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.items()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=1_000, help="how many for each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[time.time_ns() % 2**32])
    parser.add_argument("--long", action="store_true", help="also run tests marked long")
    parser.add_argument("--tests", nargs="+", help="what pytest collects, instead of all fast tests")
    parser.add_argument("files", nargs="*", help="patterns, as in 'flushtracker/capture/*.py'; those of pyproject.toml")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
