"""Fixtures of the tests with a real Prometheus and a real browser."""

from tests.support.azure_session import azure_spark, azurite  # noqa: F401  pytest must find them here
from tests.support.postgres_server import kept_server, postgres, postgres_folder  # noqa: F401  pytest must find them here
