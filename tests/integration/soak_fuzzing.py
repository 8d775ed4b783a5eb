"""``make soak``: mutated inputs for everything that reads bytes from outside, with their time and memory.

``python -m tests.integration.soak_fuzzing [--inputs 10000000] [--minutes M] [--jobs N] [--seed N]`` ends with the
number of inputs that each reader had, and before that with each input that broke its contract, up to 20. Every input is
timed, and the memory of every hundredth is measured.
"""

import sys
import tempfile
from pathlib import Path
from random import Random

from tests.support.fuzz_targets import targets
from tests.support.fuzzing import check_memory, check_time, mutated
from tests.support.soak_run import Part, Soak

_PART = 5000


def try_part(seed: int) -> Part:
    """Try the inputs of one seed."""
    rng, part = Random(seed), Part()  # noqa: S311  reproducible inputs
    with tempfile.TemporaryDirectory(prefix="flushtracker-") as folder:
        readers = targets(Path(folder))
        for number, target in enumerate(rng.choices(readers, [target.weight for target in readers], k=_PART)):
            data = mutated(rng, target)
            found = check_time(target, data) if number % 100 else check_memory(target, data)
            part.counts["inputs"] += 1
            part.counts[f"of {target.name}"] += 1
            if found is not None:
                part.failures.append(f"seed {seed}: {found}")
    return part


SOAK = Soak(__doc__, "inputs", 10_000_000, _PART, 20, try_part)

if __name__ == "__main__":
    sys.exit(SOAK.main())
