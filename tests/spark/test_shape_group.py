"""The group of a shape is the same in Python, where the tracking job's events get it, and in Spark, for the writers."""

from random import Random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from flushtracker.spark.shape_grouping import shape_group_column, shape_group_of


def test_python_and_spark_agree_on_the_group_of_a_shape(spark: SparkSession) -> None:
    """For ids of any characters that JSON and UTF-8 can hold, with two groups and with many."""
    rng = Random(5)  # noqa: S311  reproducible
    letters = [*"aZ9-/ \"'\\", "é", "ß", "Ж", "漢", "\u2028", "\ufeff", "\uffff", "😀", "\U0010ffff"]
    shape_ids = ["", "users", "naïve 🙂", *("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(500))]
    ids = spark.createDataFrame([(shape_id,) for shape_id in shape_ids], "shape_id string")
    for shape_groups in (1, 2, 16, 1009):
        rows = ids.select("shape_id", shape_group_column(F.col("shape_id"), shape_groups).alias("shape_group"))
        assert [tuple(row) for row in rows.collect()] == [
            (shape_id, str(shape_group_of(shape_id, shape_groups))) for shape_id in shape_ids
        ]
