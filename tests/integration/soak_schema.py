"""``make soak``: play random histories of schema changes, on servers of all versions of PostgreSQL that are supported.

``python -m tests.integration.soak_schema [--steps 10000] [--seed N]`` prints what was played, how often shapes have
survived each kind of change, and each history that breaks the rule, at its shortest. It fails if there is any, or if no
shape has survived a change that every shape must survive.
"""

import argparse
import sys
import time
from collections import Counter
from typing import Final

from tests.support.schema_changes import SURVIVABLE
from tests.support.schema_history import random_history
from tests.support.schema_play import RuleBrokenError
from tests.support.schema_shrink import shrink
from tests.support.schema_stage import Stage, schema_stage
from tests.support.server_versions import VERSIONS

_STEPS_IN_A_ROW: Final = 400
_LEAST_STEPS: Final = 5_000
"""With fewer, a change may not occur on a shape that could survive it; the ends of so many histories have them all."""


def main() -> int:
    """Play what the command line asks for; returns the exit code, 1 if a history breaks the rule."""
    options = _options()
    total, failures, seed = Counter[str](), list[str](), options.seed
    started = time.monotonic()
    turn = 0
    while total["steps"] < options.steps and time.monotonic() - started < options.minutes * 60:
        version = options.versions[turn % len(options.versions)]
        turn += 1
        with schema_stage(version) as stage:
            counts = Counter[str]()
            while counts["steps"] < min(_STEPS_IN_A_ROW, options.steps - total["steps"]):
                counts += _played(stage, version, seed, failures, options.replays)
                seed += 1
        total += counts + Counter({f"steps on {version}": counts["steps"]})
        rate = total["steps"] / (time.monotonic() - started)
        _print(
            f"{total['steps']:,} of {options.steps:,} steps, {rate:.1f}/s, up to seed {seed - 1} on {version}, "
            f"{total['histories']} histories, {total['shapes']} shapes, {len(failures)} failures"
        )
    for name in sorted(total):
        _print(f"{total[name]:7,} {name}")
    missing = _not_survived(total) if total["steps"] >= _LEAST_STEPS else []
    _print("\n".join([*failures, *(f"no shape has survived: {name}" for name in missing)]))
    _print(f"seed {options.seed}, {total['steps']:,} steps: {len(failures) or 'nothing'} failed")
    return 1 if failures or missing else 0


def _played(stage: Stage, version: int, seed: int, failures: list[str], replays: int) -> Counter[str]:
    """Play the history of a seed, and shrink it if it breaks the rule; returns what it has shown."""
    history = random_history(seed, version)
    try:
        return stage.play(history)
    except RuleBrokenError as broken:
        steps, what = f"-- PostgreSQL {version}, at step {broken.step}:", str(broken)
        if replays:
            shortest, what = shrink(history, broken, stage.replay, replays)
            steps = f"{steps}\n{shortest}"
        failures.append(f"{steps}\n-- seed {seed}: {what}")
        _print(failures[-1])
        return Counter({"steps": broken.step + 1, "histories": 1})


def _not_survived(total: Counter[str]) -> list[str]:
    """Those that no shape has survived."""
    must = ["; ".join(change.statements) for change in SURVIVABLE]
    return [name for name in must if not total[f"survived: {name}"]]


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a program prints


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--versions", type=int, nargs="+", default=VERSIONS)
    parser.add_argument(
        "--replays", type=int, default=60, help="how often a history that fails is played to shorten it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
