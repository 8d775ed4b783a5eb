"""Jobs with everything on a store on this machine: their configurations, and a Spark session that finds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.job_config import JobConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig
from flushtracker.config.storage_config import StorageConfig
from flushtracker.config.write_config import WriteConfig
from flushtracker.spark.object_stores import set_up_stores
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.object_store import store_config, store_keys, store_options
from tests.support.s3_server import running_s3
from tests.support.store_jobs import Store

Config = TypeVar("Config", JobConfig, WriteConfig, JobConfig | WriteConfig)

_SCHEMES: Final = ("s3", "s3a")


@contextmanager
def store_session(spark: SparkSession, port: int) -> Iterator[None]:
    """While this lasts, the session finds the bucket at ``port``."""
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    system: Any = spark.sparkContext._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
    set_up_stores(spark, SparkConfig(StorageConfig(store_config(port))), [f"{scheme}://bucket/" for scheme in _SCHEMES])
    yield
    # Hadoop keeps the file systems that it has opened, by scheme and bucket alone.
    for scheme in _SCHEMES:
        system.get(spark.sparkContext._jvm.java.net.URI(f"{scheme}://bucket/"), hadoop).close()  # type: ignore[union-attr]


def s3_store(port: int) -> Store:
    """The bucket at ``port``; deltalake gets all that it needs from the section ``storage``."""
    return Store("s3a://bucket", store_keys(port), store_options(port))


def config_on_store(config: Config, port: int, name: str) -> Config:
    """Put there, below ``name``, what a job's configuration has below its folder; its streams are on Kafka."""
    place, options = f"s3a://bucket/{name}", SecretOptions(store_options(port))
    state = replace(config.state, checkpoint=f"{place}/checkpoint")
    if isinstance(config, JobConfig):
        acks = replace(config.sink, acks=f"{place}/acks", dead_letters=f"{place}/letters", storage_options=options)
        return replace(config, state=state, sink=acks)
    log = replace(config.sink, log=f"{place}/log", shapes=f"{place}/shapes", storage_options=options)
    return replace(config, state=state, sink=log)


@pytest.fixture(scope="module")
def running_proxy(spark: SparkSession) -> Iterator[FaultyProxy]:
    """A proxy before a server, at which the session finds the bucket."""
    with running_s3() as s3, faulty_proxy(s3.port) as found, store_session(spark, found.port):
        yield found
