"""The ack table: what two drivers, months of rows and other readers find there."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema
from pyspark.sql import SparkSession

from flushtracker.delta import ack_table
from flushtracker.delta.ack_reader import read_ack_history
from flushtracker.delta.ack_table import AckRow, AckTable
from flushtracker.delta.storage import storage_reason, table_rows
from flushtracker.errors import SinkError

_NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
_ROW = AckRow(
    source="7301/1/shapes",
    batch_id=3,
    ack_lsn=97500059720,
    last_seen_lsn=97500059800,
    pending_shapes=2,
    blocking_shape="users",
    blocking_since=_NOW,
    acked_at=_NOW,
)


def claimed(folder: Path) -> AckTable:
    """The table in a folder, owned by a driver of its own."""
    table = AckTable(str(folder))
    table.claim()
    return table


def test_row_reads_the_same_by_spark_and_by_deltalake(spark: SparkSession, tmp_path: Path) -> None:
    """Both readers see the columns of the contract, and the instants as instants."""
    assert claimed(tmp_path / "acks").append(_ROW)
    by_deltalake = table_rows(DeltaTable(str(tmp_path / "acks")), ["*"]).to_pylist()
    assert by_deltalake == [
        {
            "source": "7301/1/shapes",
            "batch_id": 3,
            "ack_lsn": 97500059720,
            "ack_lsn_text": "16/B374D848",
            "last_seen_lsn": 97500059800,
            "pending_shapes": 2,
            "blocking_shape": "users",
            "blocking_since": _NOW,
            "acked_at": _NOW,
        }
    ]
    by_spark = spark.read.format("delta").load(str(tmp_path / "acks")).toArrow().to_pylist()
    assert by_spark == by_deltalake


def test_table_with_a_data_file_missing_is_a_sink_error(tmp_path: Path) -> None:
    """Its log is read without; its rows, at the tracker's start and in the report, are not."""
    folder = tmp_path / "acks"
    table = claimed(folder)
    assert table.append(_ROW)
    (data,) = folder.glob("*.parquet")
    data.unlink()
    readers: list[Callable[[], object]] = [table.last_acks, lambda: read_ack_history(str(folder))]
    for read in readers:
        with pytest.raises(SinkError, match=rf"ack table {folder} cannot be read: .*{data.name}"):
            read()


def test_ack_that_is_not_greater_is_not_appended(tmp_path: Path) -> None:
    """A replay, an old or a lost checkpoint appends nothing that the table has; each source counts by itself."""
    table = claimed(tmp_path / "acks")
    assert table.append(_ROW)
    assert not table.append(_ROW)
    assert not table.append(replace(_ROW, ack_lsn=_ROW.ack_lsn - 1))
    assert table.append(replace(_ROW, source="other/1/s", ack_lsn=5))
    assert table.last_acks() == {"7301/1/shapes": _ROW.ack_lsn, "other/1/s": 5}
    assert table.last_ack("unknown") is None
    assert not claimed(tmp_path / "acks").append(_ROW)
    assert DeltaTable(str(tmp_path / "acks")).count() == 2


def test_driver_that_lives_on_after_another_took_over_appends_no_more(tmp_path: Path) -> None:
    """It ends with an error that names the new owner, whatever source its ack is of."""
    old = claimed(tmp_path / "acks")
    assert old.append(_ROW)
    new = claimed(tmp_path / "acks")
    for row in (replace(_ROW, ack_lsn=_ROW.ack_lsn + 8), replace(_ROW, source="other/1/s")):
        with pytest.raises(SinkError, match=rf"now belongs to another driver, process {os.getpid()} on "):
            old.append(row)
    with pytest.raises(SinkError, match="now belongs to another driver"):
        old.require_claim()
    new.require_claim()
    assert new.append(replace(_ROW, ack_lsn=_ROW.ack_lsn + 16))
    assert new.last_acks() == {_ROW.source: _ROW.ack_lsn + 16}


@pytest.mark.parametrize("theirs", [_ROW, None], ids=["append", "claim"])
def test_second_of_two_drivers_that_write_at_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: AckRow | None
) -> None:
    """Both looked first and found nothing amiss; Delta lets one of them, and the other ends with a clear error."""
    ours = claimed(tmp_path / "acks")
    look = ours.require_claim

    def look_then_lose_the_race() -> None:
        look()
        other = claimed(tmp_path / "acks")
        assert theirs is None or other.append(theirs)

    monkeypatch.setattr(ours, "require_claim", look_then_lose_the_race)
    with pytest.raises(SinkError, match="another driver wrote there at the same moment"):
        ours.append(replace(_ROW, ack_lsn=_ROW.ack_lsn + 8))
    assert ours.last_acks() == ({} if theirs is None else {_ROW.source: _ROW.ack_lsn})


def test_only_one_of_two_claims_at_once_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that lost is told so at once, not at its first ack."""
    ours, theirs = AckTable(str(tmp_path / "acks")), AckTable(str(tmp_path / "acks"))
    look = ours._refresh

    def look_then_lose_the_race() -> None:
        look()
        theirs.claim()

    monkeypatch.setattr(ours, "_refresh", look_then_lose_the_race)
    with pytest.raises(SinkError, match="was claimed by another driver at the same moment"):
        ours.claim()
    assert theirs.append(_ROW)


def test_table_stays_small_and_knows_its_last_ack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction, log checkpoints and retention keep a handful of files, whatever was appended."""
    configuration = ack_table.CONFIGURATION | {
        "delta.logRetentionDuration": "interval 0 hours",
        "delta.deletedFileRetentionDuration": "interval 0 hours",
    }
    monkeypatch.setattr(ack_table, "CONFIGURATION", configuration)
    monkeypatch.setattr(ack_table, "RETENTION_HOURS", 0)
    monkeypatch.setattr(ack_table, "COMPACT_EVERY", 50)
    table = claimed(tmp_path / "acks")
    for number in range(410):
        assert table.append(replace(_ROW, ack_lsn=1000 + number))
    data_files = list((tmp_path / "acks").glob("*.parquet"))
    log_files = list((tmp_path / "acks" / "_delta_log").glob("*.json"))
    assert len(data_files) < 30
    assert len(log_files) < 130
    reopened = AckTable(str(tmp_path / "acks"))
    assert reopened.last_acks() == {_ROW.source: 1409}
    acks = sorted(table_rows(DeltaTable(str(tmp_path / "acks")), ["ack_lsn"])["ack_lsn"].to_pylist())
    assert acks == list(range(1000, 1410))


def test_created_table_has_its_maintenance_configured(tmp_path: Path) -> None:
    """What other writers and readers need to know stands in the table; transactions never expire."""
    AckTable(str(tmp_path / "acks"))
    configuration = DeltaTable(str(tmp_path / "acks")).metadata().configuration
    assert configuration == ack_table.CONFIGURATION
    assert "delta.setTransactionRetentionDuration" not in configuration


def test_another_kind_of_table_is_refused(tmp_path: Path) -> None:
    """The message names the columns that are missing, and what to do."""
    write_deltalake(str(tmp_path / "other"), pa.table({"source": ["x"], "n": [1]}))
    with pytest.raises(
        SinkError, match=r"without the columns ack_lsn, .*not an ack table; name another folder in sink"
    ):
        AckTable(str(tmp_path / "other"))


def test_place_that_cannot_be_written_is_a_sink_error(tmp_path: Path) -> None:
    """One line that names the place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"ack table .*/file/acks cannot be opened or created: ") as caught:
        AckTable(str(tmp_path / "file" / "acks"))
    assert "\n" not in str(caught.value)


def test_reason_of_the_storage_is_one_line_without_a_password() -> None:
    """An endpoint's URL may carry one, and object stores tell their reason on later lines."""
    error = OSError(
        "Generic \x1b[31mS3\x1b[0m error\n  caused by: error sending request for url (http://user:secret@10.0.0.1/bucket)"
    )
    assert storage_reason(error) == (
        "Generic S3 error caused by: error sending request for url (http://10.0.0.1/bucket)"
    )


def test_table_that_forgets_acks_is_refused(tmp_path: Path) -> None:
    """With a retention for transactions, Delta would lose the last ack of a source that is quiet for long."""
    table = DeltaTable.create(str(tmp_path / "acks"), DeltaSchema.from_arrow(ack_table.SCHEMA))
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 7 days"})
    with pytest.raises(SinkError, match=r"has delta\.setTransactionRetentionDuration set, which makes it forget acks"):
        AckTable(str(tmp_path / "acks"))
