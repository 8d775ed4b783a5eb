"""A table in which somebody has enabled features with Spark, after the advice of the message was followed."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.errors import SinkError
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.seeds import every, in_turn
from tests.support.shape_log_rows import SOURCE

_ENABLED: Final = {
    "rowTracking": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",),
    "clustering": ("ALTER TABLE {t} CLUSTER BY (source)",),
    "deletionVectors": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "DELETE FROM {t} WHERE ack_lsn = 1",
    ),
    "columnMapping": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    ),
}


def _append(acks: AckTable, lsn: int) -> None:
    acks.append(AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, datetime.now(timezone.utc)))


@every(3, 0)
@pytest.mark.parametrize("name", in_turn([*_ENABLED]))
def test_restored_table_has_every_ack_and_takes_the_next(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The running job ends before it writes with the feature, so that nothing of it is later than what is restored."""
    uri = str(tmp_path / "acks")
    acks = AckTable(uri)
    acks.fence_others()
    _append(acks, 1)
    _append(acks, 2)
    for statement in _ENABLED[name]:
        spark.sql(statement.format(t=f"delta.`{uri}`"))
    with pytest.raises(SinkError, match=name):
        _append(acks, 3)
    with pytest.raises(SinkError, match=name) as refused:
        AckTable(uri)
    setting, restore = str(refused.value).partition("with Spark (")[2].partition("), and")[0].split("; ")
    spark.sql(setting)
    spark.sql(restore)
    spark.conf.unset(setting.split()[1])
    acks = AckTable(uri)
    acks.fence_others()
    assert acks.last_ack(SOURCE) == 2
    _append(acks, 3)
    acks._owned.compact()
    assert AckTable(uri).last_ack(SOURCE) == 3
