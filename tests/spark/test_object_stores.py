"""What a job's Spark session has of ``storage`` and ``spark``, what it says without jars, and where no secret is."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig
from flushtracker.config.storage_config import AzureConfig, GcsConfig, S3Config, StorageConfig
from flushtracker.errors import ConfigError
from flushtracker.jvm.jars import ABFS_JARS, GCS_JARS, S3_JARS, SPARK_JARS
from flushtracker.spark.object_stores import jar_sets, set_up_stores
from tests.support.config_file import change_config
from tests.support.job_folder import JobFolder
from tests.support.secret_watch import SecretWatch
from tests.support.seeds import every

_SECRETS: Final = {
    "ACCESS": "AKIAHUNTER",
    "SECRET": "hunter2hunter2",
    "TOKEN": "hunter3hunter3",
    "AZURE": "hunter4hunter4",
}
_S3: Final = {
    "region": "eu",
    "access_key_id": "${ACCESS}",
    "secret_access_key": "${SECRET}",
    "session_token": "${TOKEN}",
}
_AZURE: Final = {"account": "x00", "key": "${AZURE}"}
_SPARK: Final = {"spark.hadoop.fs.azure.account.key.x": "${AZURE}", "spark.task.maxFailures": 1}


@pytest.fixture
def hadoop(spark: SparkSession) -> Iterator[Any]:
    """Hadoop's settings of the session, which are afterwards as they were."""
    found: Any = spark.sparkContext._jsc.hadoopConfiguration()
    before = _settings(found)
    yield found
    for name, value in _settings(found).items():
        if name not in before:
            found.unset(name)
        elif value != before[name]:
            found.set(name, before[name])


def _settings(hadoop: Any) -> dict[str, str]:
    entries, found = hadoop.iterator(), dict[str, str]()
    while entries.hasNext():
        entry = entries.next()
        found[entry.getKey()] = entry.getValue()
    return found


def test_settings_of_the_configuration_win_and_defaults_do_not(spark: SparkSession, hadoop: Any) -> None:
    """A default replaces only Hadoop's own, not what an administrator has set."""
    hadoop.set("fs.s3.impl", "com.example.Other")
    hadoop.set("fs.s3a.endpoint", "https://other")
    hadoop.set("fs.s3a.session.token", "of the environment")
    storage = StorageConfig(
        S3Config("https://store", "eu", "a", "b"), AzureConfig("account", "key"), GcsConfig("/key.json")
    )
    settings = SecretOptions({"spark.hadoop.fs.s3a.connection.maximum": "7"})
    set_up_stores(spark, SparkConfig(storage, settings), [])
    names = ("fs.s3.impl", "fs.s3a.endpoint", "fs.s3a.session.token", "fs.s3a.connection.maximum")
    assert [hadoop.get(name) for name in names] == ["com.example.Other", "https://store", None, "7"]
    assert hadoop.get("fs.s3a.path.style.access") == "true"
    assert hadoop.get("fs.azure.account.key.account.dfs.core.windows.net") == "key"
    assert hadoop.get("fs.gs.auth.service.account.json.keyfile") == "/key.json"


def test_path_without_its_file_system_is_refused_with_what_to_add(spark: SparkSession, hadoop: Any) -> None:
    """The version is that of Spark's own Hadoop: another one's classes do not fit."""
    for scheme in ("s3", "s3a"):
        hadoop.set(f"fs.{scheme}.impl", "com.example.Missing")
    version = spark.sparkContext._jvm.org.apache.hadoop.util.VersionInfo.getVersion()  # type: ignore[union-attr]
    modules = {"abfss://c@x.dfs.core.windows.net/c": "azure", "s3a://b/c": "aws", "s3://b/c": "aws", "gs://b/c": "gcp"}
    for path, module in modules.items():
        with pytest.raises(ConfigError) as caught:
            set_up_stores(spark, SparkConfig(), [path])
        jars = f"--packages org.apache.hadoop:hadoop-{module}:{version}"
        name = {"azure": "abfs", "aws": "s3", "gcp": "gcs"}[module]
        here = f", or on one machine run `python -m flushtracker.jvm.jars {name}`"
        if module == "gcp" and version < "3.5":
            jars, here = "--jars, or --packages", ""
        assert str(caught.value) == (
            f"Spark has no file system for {path}: start the job with spark-submit and {jars}, or name the jars in "
            f"spark.jars of the section spark{here}"
        )
    set_up_stores(spark, SparkConfig(), ["file:///tmp", "relative"])


def test_paths_name_the_jars_that_a_local_session_needs() -> None:
    """Each set once; files and what others bring need none."""
    assert jar_sets(["s3://b/c", "S3A://b/d", "gs://b/c", "data", "file:///data", "hdfs://h/c"]) == [S3_JARS, GCS_JARS]
    assert jar_sets(["abfs://c@x/c", "abfss://c@x/d"]) == [ABFS_JARS]


def test_checkpoint_on_s3_without_the_jars_is_refused_at_once(tmp_path: Path) -> None:
    """With the command that fetches them, before a JVM starts."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for path in SPARK_JARS.paths():
        (jars / path.name).symlink_to(path)
    config = JobFolder(tmp_path / "job").config_file()
    change_config(config, {"track": {"checkpoint": "s3://b/c"}})
    watch = SecretWatch({"FLUSHTRACKER_JARS": str(jars)})
    code, output = watch.run(tmp_path / "log", "track", "--config", str(config))
    assert code == ConfigError.exit_code
    assert f"FLUSHTRACKER_JARS is {jars}: s3/" in output


@every(4, 2)
def test_no_secret_of_a_storage_is_seen_anywhere(tmp_path: Path) -> None:
    """Neither in the output, nor in a file, nor in the command line of the JVM that gets it."""
    folder = JobFolder(tmp_path / "job")
    folder.write([])
    config = folder.config_file()
    change_config(config, {"storage": {"path": str(folder.root), "s3": _S3, "azure": _AZURE}, "spark": _SPARK})
    watch = SecretWatch(_SECRETS)
    code, output = watch.run(tmp_path / "log", "track", "--config", str(config))
    assert code == os.EX_OK, output
    watch.require_no_secret(tmp_path)
