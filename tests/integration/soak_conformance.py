"""``make soak``: the writers' job keeps the contract of docs/writers.md while its log is merged.

``python -m tests.integration.soak_conformance [--kills 100] [--data FOLDER]`` runs ``flushtracker conformance`` on the
job, killed with its JVM and its workers; its upkeep merges whatever two files there are.
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

from flushtracker.shape_log.table.files import LogFiles
from flushtracker.wal.names import LOG_WRITER
from tests.support.spark_cluster import FAST_START

_WRITER = [sys.executable, "-m", "tests.support.conforming_writer"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--data", type=Path, default=Path("data/soak"))
    arguments = parser.parse_args()
    command = [
        *(sys.executable, "-m", "flushtracker", "conformance", "--data", str(arguments.data), "--timeout", "600"),
        *("--writer", f"{shlex.join([*_WRITER, 'write'])} {{config}} {{data}}"),
        *("--name", LOG_WRITER),
        *("--dump", f"{shlex.join([*_WRITER, 'dump'])} {{data}}", "--kills", str(arguments.kills), "--seeds", "1"),
        *("--read", f"{shlex.join([*_WRITER, 'read'])} {{data}}"),
    ]
    # The job is killed soon after each start, which optimizing compilation would make longer by half.
    environ = {**os.environ, "JAVA_TOOL_OPTIONS": FAST_START}
    code = subprocess.run(command, check=False, env=environ).returncode
    if code == 0:
        (log,) = arguments.data.glob("*/seed-1/storage/log")
        if all(file.run is None for file in LogFiles(DeltaTable(str(log)), {}).current()):
            print("the rules hold, but the log was never merged")  # noqa: T201
            return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
