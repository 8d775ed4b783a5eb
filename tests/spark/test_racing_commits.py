"""Processes that commit to the same tables at the same time, while the file system takes its time to name a commit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from flushtracker.delta.storage import table_rows
from tests.support.seeds import every
from tests.support.waiting import wait_until

_KEYS: Final = {"log": "tx_offset", "acks": "ack_lsn", "shapes": "id", "letters": "value"}
_DELAY_MS: Final = "100"
_DELAYED_NAMES: Final = Path(__file__).parents[1] / "support" / "delayed_names.c"


class Race:
    """The processes on the tables in ``folder``; each is ended in :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._library = folder / "delayed_names.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_DELAYED_NAMES), "-ldl"]
        subprocess.run(command, check=True)

    def start(self, role: str, count: int = 0) -> None:
        command = [sys.executable, "-m", "tests.support.racing_commits", role, str(self.folder), str(count)]
        delays = {"LD_PRELOAD": str(self._library), "DELAY_NAMES_MS": _DELAY_MS}
        with (self.folder / f"{role}.printed").open("wb") as printed:
            self.processes[role] = subprocess.Popen(command, env={**os.environ, **delays}, stdout=printed)

    def wait(self, role: str) -> None:
        assert self.processes[role].wait(timeout=600) == 0, role

    def confirmed(self, table: str) -> list[str]:
        """What the processes have printed of a table."""
        lines = [line.split() for path in self.folder.glob("*.printed") for line in path.read_text().splitlines()]
        return sorted(what for name, what in lines if name == table)

    def there(self, table: str) -> list[str]:
        """What is in the table."""
        condition = "operation IS NULL OR operation = 'commit'" if table == "log" else "TRUE"
        rows = table_rows(DeltaTable(str(self.folder / table)), [_KEYS[table]], condition)
        return sorted(str(row) for row in rows[_KEYS[table]].to_pylist())

    def close(self) -> None:
        (self.folder / "done").touch()
        for process in self.processes.values():
            process.kill()
            process.wait()


@every(2, 1)
def test_no_commit_replaces_another(tmp_path: Path) -> None:
    """Writer, snapshots, upkeep, acks, registry and dead letters: each row that was appended is there once."""
    race = Race(tmp_path)
    try:
        race.start("snapshot", 15)
        wait_until(lambda: race.confirmed("log"), "the first snapshot", 600)
        race.start("upkeep")
        race.start("writer", 25)
        race.wait("snapshot")
        race.wait("writer")
        (tmp_path / "done").touch()
        race.wait("upkeep")
        for table in _KEYS:
            assert race.there(table) == race.confirmed(table)
        assert len(race.confirmed("log")) == 40
        assert len(race.confirmed("letters")) == len(race.confirmed("shapes")) > 28
    finally:
        race.close()


def test_processes_that_start_at_the_same_moment_create_each_table_once(tmp_path: Path) -> None:
    """A second first commit would change the metadata, with which the next commit of the first process conflicts."""
    race = Race(tmp_path)
    try:
        race.start("creators", 3)
        race.wait("creators")
        folders = [path for path in tmp_path.glob("*/*") if path.is_dir()]
        assert len(folders) == 4 * 3
        for folder in folders:
            texts = [path.read_text() for path in folder.glob("_delta_log/*.json")]
            assert sum('"metaData"' in text for text in texts) == 1, folder
    finally:
        race.close()


@pytest.mark.soak
def test_commits_of_spark_replace_others(tmp_path: Path) -> None:
    """Spark's own Delta writer looks for the version, then renames; so the first test can fail."""
    # Whether two of some eighty commits meet is up to the machine.
    assert any(_is_replaced(tmp_path / str(attempt)) for attempt in range(4))


def _is_replaced(folder: Path) -> bool:
    folder.mkdir()
    race = Race(folder)
    try:
        race.start("spark_commits", 20)
        wait_until(lambda: race.confirmed("log"), "the first snapshot", 600)
        race.start("writer", 60)
        race.wait("spark_commits")
        is_fenced = race.processes["writer"].wait(timeout=120) != 0
        # Where the writer finds that its commit is gone, it takes this for a commit by another writer.
        return is_fenced or set(race.confirmed("log")) > set(race.there("log"))
    finally:
        race.close()
