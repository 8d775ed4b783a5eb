"""The ack table under several drivers, with many rows, and through other readers."""

import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema
from pyspark.sql import SparkSession

from flushtracker.delta import owned_table
from flushtracker.delta.storage import storage_reason, table_rows
from flushtracker.errors import SinkError
from flushtracker.tracking.acks import ack_table
from flushtracker.tracking.acks.ack_reader import read_ack_history
from flushtracker.tracking.acks.ack_table import AckRow, AckTable

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


def open_table(folder: Path) -> AckTable:
    """Open the table as a new driver, which fences all others."""
    table = AckTable(str(folder))
    table.fence_others()
    return table


def test_spark_and_deltalake_read_the_same_row(spark: SparkSession, tmp_path: Path) -> None:
    """Both readers see the documented columns, and timestamps as timestamps."""
    assert open_table(tmp_path / "acks").append(_ROW)
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
    """The report needs the rows; the tracker's start needs only the table's log, which is still readable."""
    folder = tmp_path / "acks"
    table = open_table(folder)
    assert table.append(_ROW)
    (data,) = folder.glob("*.parquet")
    data.unlink()
    with pytest.raises(SinkError, match=rf"ack table {folder} cannot be read: .*{data.name}"):
        read_ack_history(str(folder))
    assert table.last_acks() == {_ROW.source: _ROW.ack_lsn}


def test_ack_that_is_not_greater_is_not_appended(tmp_path: Path) -> None:
    """A rerun, or an old or lost checkpoint, appends no ack again. Each source is compared with its own last ack."""
    table = open_table(tmp_path / "acks")
    assert table.append(_ROW)
    assert not table.append(_ROW)
    assert not table.append(replace(_ROW, ack_lsn=_ROW.ack_lsn - 1))
    assert table.append(replace(_ROW, source="other/1/s", ack_lsn=5))
    assert table.last_acks() == {"7301/1/shapes": _ROW.ack_lsn, "other/1/s": 5}
    assert table.last_ack("unknown") is None
    assert not open_table(tmp_path / "acks").append(_ROW)
    assert DeltaTable(str(tmp_path / "acks")).count() == 2


def test_fenced_driver_appends_no_more(tmp_path: Path) -> None:
    """It ends with an error that names the new driver, whatever source its ack is of."""
    old = open_table(tmp_path / "acks")
    assert old.append(_ROW)
    new = open_table(tmp_path / "acks")
    for row in (replace(_ROW, ack_lsn=_ROW.ack_lsn + 8), replace(_ROW, source="other/1/s")):
        with pytest.raises(SinkError, match=rf"fenced: another driver \(process {os.getpid()} on .*\) writes to"):
            old.append(row)
    with pytest.raises(SinkError, match="this driver has been fenced: another driver"):
        old.require_not_fenced()
    new.require_not_fenced()
    assert new.append(replace(_ROW, ack_lsn=_ROW.ack_lsn + 16))
    assert new.last_acks() == {_ROW.source: _ROW.ack_lsn + 16}


@pytest.mark.parametrize("theirs", [_ROW, None], ids=["append", "fence"])
def test_second_of_two_concurrent_commits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: AckRow | None
) -> None:
    """Both checked first and were not fenced yet; Delta accepts one commit, and the other driver gets a clear error."""
    ours = open_table(tmp_path / "acks")
    check = ours.require_not_fenced

    def check_then_lose_the_race() -> None:
        check()
        other = open_table(tmp_path / "acks")
        assert theirs is None or other.append(theirs)

    monkeypatch.setattr(ours, "require_not_fenced", check_then_lose_the_race)
    with pytest.raises(SinkError, match="another driver wrote to it at the same moment"):
        ours.append(replace(_ROW, ack_lsn=_ROW.ack_lsn + 8))
    assert ours.last_acks() == ({} if theirs is None else {_ROW.source: _ROW.ack_lsn})


def test_only_one_of_two_drivers_that_fence_at_once_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser gets an error immediately, not only at its first ack."""
    ours, theirs = AckTable(str(tmp_path / "acks")), AckTable(str(tmp_path / "acks"))
    refresh = ours._owned.refresh

    def check_then_lose_the_race() -> None:
        refresh()
        theirs.fence_others()

    monkeypatch.setattr(ours._owned, "refresh", check_then_lose_the_race)
    with pytest.raises(SinkError, match=r"fenced: another driver started on ack table .* at the same moment"):
        ours.fence_others()
    assert theirs.append(_ROW)


def test_created_table_has_its_maintenance_configured(tmp_path: Path) -> None:
    """The table itself carries the settings for other writers and readers; its transactions never expire."""
    AckTable(str(tmp_path / "acks"))
    configuration = DeltaTable(str(tmp_path / "acks")).metadata().configuration
    assert configuration == owned_table.CONFIGURATION
    assert "delta.setTransactionRetentionDuration" not in configuration


def test_another_kind_of_table_is_refused(tmp_path: Path) -> None:
    """The message names the missing columns and the fix."""
    write_deltalake(str(tmp_path / "other"), pa.table({"source": ["x"], "n": [1]}))
    with pytest.raises(SinkError, match=r"without the columns batch_id, .*not the ack table; name another storage"):
        AckTable(str(tmp_path / "other"))


def test_folder_that_cannot_be_written_is_a_sink_error(tmp_path: Path) -> None:
    """The error is one line that names the folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"ack table .*/file/acks cannot be opened or created: ") as caught:
        AckTable(str(tmp_path / "file" / "acks"))
    assert "\n" not in str(caught.value)


def test_storage_reason_is_one_line_without_a_password() -> None:
    """The URL of an endpoint may contain a password, and object stores put the reason on later lines."""
    error = OSError(
        "Generic \x1b[31mS3\x1b[0m error\n  caused by: error sending request for url (http://user:secret@10.0.0.1/bucket)"
    )
    assert storage_reason(error) == (
        "Generic S3 error caused by: error sending request for url (http://10.0.0.1/bucket)"
    )


def test_table_that_expires_acks_is_refused(tmp_path: Path) -> None:
    """With a retention for transactions, Delta would lose the last ack of a source that is idle for long."""
    table = DeltaTable.create(str(tmp_path / "acks"), DeltaSchema.from_arrow(ack_table.SCHEMA))
    properties = {**owned_table.CONFIGURATION, "delta.setTransactionRetentionDuration": "interval 7 days"}
    table.alter.set_table_properties(properties, raise_if_not_exists=False)
    with pytest.raises(SinkError, match=r"has delta\.setTransactionRetentionDuration set, which expires acks"):
        AckTable(str(tmp_path / "acks"))
