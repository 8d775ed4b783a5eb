"""The table of dead letters: what merging its files takes, and what becomes of it when somebody deletes it."""

import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flushtracker.delta import compaction
from flushtracker.delta.data_file import BLOCK_BYTES
from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError


def letters(batch_id: int, values: list[str]) -> list[dict[str, Any]]:
    written_at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return [
        {"batch_id": batch_id, "place": "p", "reason": "r", "value": value, "written_at": written_at}
        for value in values
    ]


def stored(folder: Path) -> list[str]:
    return sorted(table_rows(DeltaTable(str(folder)), ["value"])["value"].to_pylist())


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow takes in this test alone."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


def test_merging_takes_the_memory_of_some_batches_however_many_there_were(
    tmp_path: Path, pool: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer sends the same garbage for months: the files are small, as texts that are repeated are in them once."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 20)
    table = DeadLetterTable(str(tmp_path / "letters"))
    for batch_id in range(25):
        table.append(letters(batch_id, ["x" * 10_000] * 400), "query", batch_id)
        if batch_id == 0:
            first = pool.max_memory()
    assert len(DeltaTable(str(tmp_path / "letters")).file_uris()) < 20
    assert pool.max_memory() < first + 3 * BLOCK_BYTES


def test_dead_letters_go_into_a_new_table_after_theirs_was_deleted(tmp_path: Path) -> None:
    """While the job runs. Those of one batch are lost, which the log says; there is no need for a restart."""
    folder = tmp_path / "letters"
    table = DeadLetterTable(str(folder))
    table.append(letters(0, ["first"]), "query", 0)
    shutil.rmtree(folder)
    with pytest.raises(SinkError, match="cannot be read"):
        table.append(letters(1, ["lost"]), "query", 1)
    table.append(letters(2, ["second"]), "query", 2)
    assert stored(folder) == ["second"]
