"""``make soak``: compare random ``where`` conditions with a PostgreSQL server, in several collations.

Then mutated ones, of which most are refused.
``python -m tests.integration.soak_where [--conditions 20000] [--mutated 100000] [--seed N] [--version 18]`` prints what
was compared, and each condition that differs, with what reproduces it. It fails if there is any.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from flushtracker.local.postgres import LocalPostgres
from tests.support.server_versions import VERSIONS, binaries_of, runs_here
from tests.support.where_comparison import WhereComparison

_COLLATIONS = ("default", "C", "C.utf8")
_COLLATIONS_SINCE = {17: ("pg_c_utf8",), 18: ("pg_unicode_fast",)}
_ICU_COLLATIONS = ("tr-x-icu", "lt-x-icu", "el-x-icu", "und-x-icu", "nl-x-icu", "hy-x-icu")
_CONDITIONS_PER_TABLE = 1000
_MUTATED_PER_TABLE = 5000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", type=int, default=20_000)
    parser.add_argument("--mutated", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--version", type=int, choices=VERSIONS, default=18)
    arguments = parser.parse_args()
    compared = mutated = differences = 0
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        # The packaged server is built without ICU.
        binaries = binaries_of(arguments.version) if runs_here() else None
        collations = _COLLATIONS + (_ICU_COLLATIONS if runs_here() else ())
        for version, names in _COLLATIONS_SINCE.items():
            collations += names if arguments.version >= version else ()
        with LocalPostgres(folder / "server", binaries=binaries) as server:
            seed = arguments.seed
            while compared < arguments.conditions or mutated < arguments.mutated:
                comparison = WhereComparison(server, seed, collation=collations[seed % len(collations)])
                if compared < arguments.conditions:
                    done = comparison.run(min(_CONDITIONS_PER_TABLE, arguments.conditions - compared))
                    compared += done.counts["compared"]
                else:
                    count = min(_MUTATED_PER_TABLE, arguments.mutated - mutated)
                    done = comparison.run_mutated(count)
                    mutated += count
                comparison.close()
                differences += len(done.differences)
                counts = ", ".join(f"{count} {what}" for what, count in sorted(done.counts.items()))
                print("\n".join([f"seed {seed}: {counts}", *done.differences]), flush=True)  # noqa: T201  a program prints
                seed += 1
    print(f"{compared} conditions compared, and {mutated} mutated; {differences} differ")  # noqa: T201  a program prints
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
