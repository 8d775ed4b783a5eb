"""A process that appends entries to a registry table in an object store: ``PORT NAME COUNT URI``.

It waits for a line of its input before it begins, so that several begin at the same moment.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Final
from urllib.parse import urlsplit

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.process.process_end import end_process
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.object_store import AZURE_ACCOUNT, AZURE_CONTAINER, azure_options, google_options, store_options

URI: Final = "s3://bucket/shapes"
GOOGLE_URI: Final = "gs://bucket/shapes"
AZURE_URI: Final = f"abfss://{AZURE_CONTAINER}@{AZURE_ACCOUNT}.dfs.core.windows.net/shapes"
_OPTIONS: Final[Mapping[str, Callable[[int], dict[str, str]]]] = {
    "s3": store_options,
    "gs": google_options,
    "abfss": azure_options,
    "hdfs": lambda _port: {},
}


def race(port: int, names: str, count: int, uri: str = URI) -> None:
    """Run a process for each name, all at the same moment, until each has appended ``count`` entries."""
    command = [sys.executable, "-m", "tests.support.racing_entries", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([*command, name, str(count), uri], **pipes) for name in names]  # type: ignore[call-overload]
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    assert [program.wait(120) for program in programs] == [0] * len(names)


def racing_programs_replace_no_commit(port: int, uri: str = URI, count: int = 10) -> None:
    """Each of the ``count`` entries of each program is there, whoever was first."""
    options = _OPTIONS[urlsplit(uri).scheme](port)
    RegistryTable(uri, options, create=True)
    race(port, "abc", count, uri)
    found = RegistryTable(uri, options).written()
    assert sorted(key[2] for key in found) == sorted(f"{name}{number}" for name in "abc" for number in range(count))


def main() -> None:
    """Append entries, named by the argument and a number, each in a commit of its own."""
    port, name, count, uri = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    registry = RegistryTable(uri, _OPTIONS[urlsplit(uri).scheme](port), create=True)
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    for number in range(count):
        definition = ShapeDefinition(f"{name}{number}", ("public", "users"))
        entry = ShapeEntry("7/1/s", definition, 7, LogOffset(9, 0)).to_json()
        registry.append([entry], datetime.now(timezone.utc))


if __name__ == "__main__":
    main()
    end_process(0)
