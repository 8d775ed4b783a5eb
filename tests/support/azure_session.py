"""Jobs with everything on Azurite: their configurations, and a Spark session that finds it."""

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig
from flushtracker.config.storage_config import AzureConfig, StorageConfig
from flushtracker.jvm.jars import ABFS_JARS
from flushtracker.spark.session import start_session
from tests.support.azurite import install, running_azurite
from tests.support.faulty_proxy import FaultyProxy
from tests.support.object_store import AZURE_ACCOUNT, AZURE_CONTAINER, AZURE_KEY, azure_endpoint, azure_options
from tests.support.store_jobs import Store

PLACE: Final = f"abfs://{AZURE_CONTAINER}@{AZURE_ACCOUNT}.dfs.core.windows.net"


def azure_store(port: int) -> Store:
    """The container, configured as another cloud of Azure is."""
    azure = {"account": AZURE_ACCOUNT, "key": AZURE_KEY}
    return Store(PLACE, {"azure": azure}, azure_options(port), azure_endpoint(port), _settings(port))


def _settings(port: int) -> dict[str, str]:
    settings = {
        "abfs.endpoint": f"127.0.0.1:{port}",
        "always.use.https": "false",
        # An account without a hierarchical namespace, of whose two services Azurite has only the one for blobs.
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        "networking.library": "JDK_HTTP_URL_CONNECTION",
        # Of each request: by default it is repeated for minutes.
        "io.retry.max.retries": "3",
    }
    return {f"spark.hadoop.fs.azure.{name}": value for name, value in settings.items()}


@pytest.fixture(scope="module")
def azurite() -> Iterator[FaultyProxy]:
    """Azurite behind a proxy; nothing in the container is shared between tests."""
    install()
    with running_azurite() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def azure_spark(azurite: FaultyProxy) -> Iterator[SparkSession]:
    """A session of a job that has its paths there."""
    ABFS_JARS.fetch()
    config = SparkConfig(
        StorageConfig(azure=AzureConfig(AZURE_ACCOUNT, AZURE_KEY)), SecretOptions(_settings(azurite.port))
    )
    session = start_session("tests on Azurite", 2, config, [PLACE])
    yield session
    session.stop()
