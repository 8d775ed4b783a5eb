"""``make soak``: read randomly damaged events, and compare with the definition of an event.

``python -m tests.integration.soak_events [--events 1000000] [--seed N]`` prints how many were compared and how many of
them are still events. It fails with the first that is read otherwise than defined.
"""

import argparse
import time
from multiprocessing import Pool

from tests.support.event_mutations import sample_changes, sample_events
from tests.support.reader_comparison import compare_many

_EVENTS_PER_SEED = 10_000


def _compared(seed: int) -> int:
    return compare_many(seed, _EVENTS_PER_SEED, sample_changes if seed % 3 == 0 else sample_events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + max(1, arguments.events // _EVENTS_PER_SEED))
    with Pool() as pool:
        readable = sum(pool.imap_unordered(_compared, seeds))
    compared = len(seeds) * _EVENTS_PER_SEED
    print(f"{compared} damaged events compared from seed {seeds[0]}, {readable} still readable, none differs")  # noqa: T201


if __name__ == "__main__":
    main()
