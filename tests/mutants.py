"""``make mutants``: change the code in many ways, one at a time, and list the changes that no fast test notices.

``python -m tests.mutants [--sample 1000] [--seed N] [FILES ...]`` judges a random sample of the files' mutants, as
``tests/support/mutant_judge.py`` describes. The same commit, seed and files give the same sample. mutmut makes the
mutants, in a copy of the repository, ``mutants/``, and shows one: ``python -m mutmut show NAME``.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from mutmut.__main__ import collect_source_file_mutation_data, create_mutants
from mutmut.configuration import config
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir

from tests.support.mutant_judge import NOTICED, SAMPLE, TIMED_OUT, VERDICTS

_COPY: Final = Path("mutants")


def main() -> int:
    """Judge what the command line asks for; returns pytest's exit code."""
    options = _options()
    config().only_mutate = options.files or config().only_mutate
    _generate()
    names = sorted(name for _, name, _ in collect_source_file_mutation_data(mutant_names=[])[0])
    sample = random.Random(options.seed).sample(names, min(options.sample, len(names)))  # noqa: S311
    _print(f"seed {options.seed}: {len(sample):,} of {len(names):,} mutants")
    (_COPY / SAMPLE).write_text("\n".join(sample))
    code = _judge(options.tests or config().pytest_add_cli_args_test_selection)
    _report()
    return code


def _generate() -> None:
    # mutmut would keep what an interrupted run, or one for other files, has left.
    shutil.rmtree(_COPY, ignore_errors=True)
    _COPY.mkdir()
    with redirect_stdout(sys.stderr):
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(os.cpu_count() or 1)


def _judge(tests: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.mutant_judge", "--capture=no", "-q"]
    command += ["--basetemp=tmp", *config().pytest_add_cli_args, *tests]
    # In the copy, `python -m` imports the mutants before the original.
    return subprocess.run(command, cwd=_COPY, check=False).returncode


def _report() -> None:
    verdicts = [line.split("\t") for line in (_COPY / VERDICTS).read_text().splitlines()]
    for verdict, name, _ in sorted(verdicts):
        if verdict not in (NOTICED, TIMED_OUT):
            _print(f"{verdict}: {name}")
    counts = Counter(verdict for verdict, _, _ in verdicts)
    _print(", ".join(f"{counts[verdict]:,} {verdict}" for verdict in sorted(counts)))


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a program prints


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--tests", nargs="+", help="what pytest collects, instead of all fast tests")
    parser.add_argument("files", nargs="*", help="patterns, as in 'flushtracker/capture/*.py'; those of pyproject.toml")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
