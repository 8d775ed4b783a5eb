"""What a Spark session is refused for: another kind of Spark, or a Delta that was made for another version."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.spark_config import SparkConfig
from flushtracker.errors import ConfigError
from flushtracker.spark.session import start_session
from flushtracker.spark.session_checks import refuse_connect, require_client_mode, require_delta, require_versions

_NO_CONNECT = (
    "Spark Connect and serverless Spark cannot run this job, whose driver calls the JVM and holds its batches: start "
    "it with spark-submit on a cluster, or on one machine without Spark Connect"
)


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_a_job_that_would_connect_to_a_remote_spark_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before anything starts: nobody need listen there."""
    monkeypatch.setenv(name, "sc://127.0.0.1:9")
    with pytest.raises(ConfigError) as caught:
        start_session("tests", 2)
    assert str(caught.value) == f"{name} is set: {_NO_CONNECT}"


@pytest.mark.parametrize("settings", [{"spark.remote": "local"}, {"spark.api.mode": "Connect"}])
def test_settings_that_choose_connect_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        start_session("tests", 2, SparkConfig(settings=SecretOptions(settings)))
    assert str(caught.value) == f"spark.remote or spark.api.mode chooses Spark Connect: {_NO_CONNECT}"


def test_the_mode_of_the_environment_counts_where_no_setting_has_one() -> None:
    connect = {"SPARK_API_MODE": "connect"}
    with pytest.raises(ConfigError, match=r"spark\.api\.mode chooses Spark Connect"):
        refuse_connect({}, connect)
    refuse_connect({"spark.api.mode": "classic"}, connect)
    refuse_connect({}, {"SPARK_REMOTE": "", "SPARK_API_MODE": "classic"})


def test_a_session_that_turns_out_to_be_remote_is_refused() -> None:
    """A serverless platform returns one whatever is asked for."""
    with pytest.raises(ConfigError) as caught:
        require_versions(cast("SparkSession", SimpleNamespace(version="4.2.0")))
    assert str(caught.value) == f"pyspark has connected to a remote Spark: {_NO_CONNECT}"


@pytest.mark.parametrize("version", ["3.5.7", "4.3.0"])
def test_a_clusters_spark_of_another_version_is_refused(version: str) -> None:
    class _Session(SparkSession):
        def __init__(self) -> None:
            """Without a JVM."""

        @property
        def version(self) -> Any:
            return version

    with pytest.raises(ConfigError, match=rf"this is Spark {version}, and this release has jars for 4\.0, "):
        require_versions(_Session())


def test_delta_of_another_spark_is_refused() -> None:
    """It would fail later, in the middle of a batch, with a method that is not found."""
    remedy = "pass the jars that `flushtracker dist` writes with pyspark 4.2, with --jars"
    with pytest.raises(ConfigError) as caught:
        require_delta("4.2", "file:/opt/jars/delta-spark_4.0_2.13-4.4.0.jar")
    assert str(caught.value) == (f"delta-spark_4.0_2.13-4.4.0.jar is for Spark 4.0, and this is Spark 4.2: {remedy}")
    with pytest.raises(ConfigError) as caught:
        require_delta("4.2", None)
    assert str(caught.value) == f"Spark 4.2 has started without Delta: {remedy}"


@pytest.mark.parametrize("jar", ["file:/x/delta-spark_4.2_2.13-4.4.0.jar", "file:/x/delta-spark_2.13-4.0.0.jar", ""])
def test_delta_that_may_fit_is_accepted(jar: str) -> None:
    """That of this Spark, and one whose name does not say for which it is."""
    require_delta("4.2", jar)


def test_a_driver_in_cluster_mode_is_refused_by_name() -> None:
    """Rather than run where nothing starts it again. On a standalone cluster Spark itself refuses that of Python."""
    require_client_mode(None)
    require_client_mode("client")
    with pytest.raises(ConfigError, match=r"start it in client mode, which is spark-submit's default$"):
        require_client_mode("cluster")
