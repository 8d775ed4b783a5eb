"""The fixture of the Spark session; the conftests of all tests that need it import it."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from flushtracker.spark.session import start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the whole test run: starting it takes longer than most tests."""
    # The path has it start with the jars for S3.
    session = start_session("tests", shuffle_partitions=2, paths=["s3://bucket"])
    yield session
    session.stop()
