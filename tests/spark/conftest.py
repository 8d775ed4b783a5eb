"""One Spark session for all tests that need one: starting it takes longer than most tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from flushtracker.spark.session import start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("tests", shuffle_partitions=2)
    yield session
    session.stop()
