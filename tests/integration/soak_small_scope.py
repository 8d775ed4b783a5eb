"""``make soak``: every history of a few transactions through the code that decides an ack; takes hours of CPU time.

``python -m tests.integration.soak_small_scope [--scopes N]`` searches each scope of :data:`SCOPES` in turn, the first
``N`` if given, case by case on all cores, and prints how many states, batches and histories each has. It fails with the
first history whose ack is not what the plain rule says.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from multiprocessing import Pool
from typing import Final

from tests.support.small_scope import Case, SmallScope, all_cases, removals

SCOPES: Final[dict[str, Callable[[], list[Case]]]] = {
    "1 shape, 2 transactions of 2 fragments, a resend": lambda: list(all_cases(1, 2, 2, resends=1)),
    "2 shapes, 2 transactions of 1 fragment, a resend and a lost checkpoint": lambda: list(
        all_cases(2, 2, 1, resends=1, losses=1)
    ),
    "2 shapes, one of them removed, 2 transactions of 1 fragment, a resend and a lost checkpoint": lambda: list(
        removals(all_cases(2, 2, 1, resends=1, losses=1))
    ),
    "3 shapes, 2 transactions of 1 fragment, a resend and a lost checkpoint": lambda: list(
        all_cases(3, 2, 1, resends=1, losses=1)
    ),
    "1 shape, 2 transactions of 2 fragments, a resend and a lost checkpoint": lambda: list(
        all_cases(1, 2, 2, resends=1, losses=1)
    ),
    "1 shape, 3 transactions of 2 fragments, a lost checkpoint": lambda: list(all_cases(1, 3, 2, losses=1)),
    "2 shapes, 2 transactions of 2 fragments, a lost checkpoint": lambda: list(all_cases(2, 2, 2, losses=1)),
}


def _searched(case: Case) -> Counter[str]:
    scope = SmallScope(case)
    scope.search()
    return Counter(states=scope.states, batches=scope.batches, histories=scope.histories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scopes", type=int, default=len(SCOPES))
    arguments = parser.parse_args()
    with Pool() as pool:
        for name, cases in list(SCOPES.items())[: arguments.scopes]:
            found = cases()
            total: Counter[str] = Counter()
            for number, counts in enumerate(pool.imap_unordered(_searched, found), 1):
                total += counts
                if number % 20 == 0:
                    print(f"  {number} of {len(found)} cases", flush=True)  # noqa: T201
            counts_text = ", ".join(f"{count:.3g} {what}" for what, count in total.items())
            print(f"{name}: {len(found)} cases, {counts_text}; every ack as it should be", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
