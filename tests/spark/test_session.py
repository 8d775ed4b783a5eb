"""What a session sets, as its Python workers see it."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def test_python_workers_get_at_most_64_mib_and_a_row_at_a_time(spark: SparkSession) -> None:
    """On each Spark: by its own default, 4.0 has four times as much in memory of a backlog of large events."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    rows = spark.range(0, 100, 1, 1).selectExpr("CAST(repeat('x', 1048576) AS binary) AS value")
    counts = [row["rows"] for row in rows.mapInArrow(count, "rows bigint").collect()]
    assert sum(counts) == 100
    assert max(counts) <= 65
