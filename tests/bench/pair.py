"""``python -m tests.bench.pair --base COMMIT NAME``: one bench on two commits, in turns: a disturbance hits both.

Each round runs the bench of the base, then that of the working tree, in processes of their own. A bench of a commit is
the one that the commit has. For each cell that is a number, the medians and their ratio.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.measure import Table

ROOT = Path(__file__).parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pair", description=__doc__)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="what to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("name", metavar="NAME", help="the bench, as python -m tests.bench knows it")
    arguments = parser.parse_args()
    runs: dict[str, list[list[Any]]] = {"base": [], "here": []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--detach", base, arguments.base], cwd=ROOT, check=True)
        try:
            (base / ".jars").symlink_to(ROOT / ".jars")
            for _ in range(arguments.rounds):
                for side, tree in (("base", base), ("here", ROOT)):
                    runs[side].append(_run(tree, arguments.name, Path(folder) / "tables.json"))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", base], cwd=ROOT, check=True)
    for tables in zip(zip(*runs["base"], strict=True), zip(*runs["here"], strict=True), strict=True):
        sys.stdout.write(f"\n{_compared(*tables)}\n")
    return 0


def _run(tree: Path, name: str, output: Path) -> list[Any]:
    """The bench's tables, as the tree's own code makes them."""
    command = [sys.executable, "-m", "tests.bench", "--json", str(output), name]
    subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=True)
    tables: list[Any] = json.loads(output.read_text())["tables"][name]
    return tables


def _compared(base: tuple[Any, ...], here: tuple[Any, ...]) -> Table:
    rows = []
    for number, row in enumerate(here[0]["rows"]):
        for column, name in enumerate(here[0]["header"][1:], 1):
            figures = [[_number(run["rows"][number][column]) for run in side] for side in (base, here)]
            if all(figure is not None for side in figures for figure in side):
                before, after = (median(figure for figure in side if figure is not None) for side in figures)
                ratio = f"{after / before:.2f}" if before else ""
                rows.append([f"{row[0]}, {name}", f"{before:,g}", f"{after:,g}", ratio])
    return Table(here[0]["title"], ["", "base", "here", "ratio"], rows)


def _number(cell: str) -> float | None:
    try:
        return float(cell.removesuffix(" s").removesuffix(" MB").replace(",", ""))
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main())
