"""The fixtures of the tests that run Spark in their own process."""

from tests.support.s3_session import running_proxy  # noqa: F401  a fixture, which pytest must find here
from tests.support.spark_session import spark  # noqa: F401  likewise
