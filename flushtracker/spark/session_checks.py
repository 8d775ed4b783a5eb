"""Checks of a Spark session: that it is not a Spark Connect client, and that the versions of Spark and Delta match."""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from flushtracker.errors import ConfigError
from flushtracker.jvm.spark_version import supported_minor

_DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_JAR: Final = re.compile(r"delta-spark_(\d+\.\d+)_[\d.]+-[^/]*\.jar$")
_NO_CONNECT: Final = (
    "Spark Connect and serverless Spark cannot run this job, whose driver calls the JVM and holds its batches: start "
    "it with spark-submit on a cluster, or on one machine without Spark Connect"
)


_NO_CLUSTER_MODE: Final = (
    "this job's driver runs in cluster mode, where nothing starts it again, and its configuration is elsewhere: start "
    "it in client mode, which is spark-submit's default"
)


def refuse_connect(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigError`` if pyspark would connect to a remote Spark; call it before pyspark tries to."""
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if environ.get(name):
            raise ConfigError(f"{name} is set: {_NO_CONNECT}")
    mode = settings.get("spark.api.mode", environ.get("SPARK_API_MODE", ""))
    if "spark.remote" in settings or mode.lower() == "connect":
        raise ConfigError(f"spark.remote or spark.api.mode chooses Spark Connect: {_NO_CONNECT}")


def require_versions(session: SparkSession) -> None:
    """Check the versions that actually run; on a cluster, the cluster's.

    Raises:
        ConfigError: it is a session of Spark Connect, a driver in cluster mode, or a Spark without jars in this
            release, without Delta, or with the Delta of another Spark.
    """
    if not isinstance(session, SparkSession):
        raise ConfigError(f"pyspark has connected to a remote Spark: {_NO_CONNECT}")
    require_delta(supported_minor(session.version), _delta_jar(session))
    require_client_mode(session.sparkContext.getConf().get("spark.submit.deployMode"))


def require_client_mode(deploy_mode: str | None) -> None:
    """Raise ``ConfigError`` for a driver that the cluster has started."""
    if deploy_mode == "cluster":
        raise ConfigError(_NO_CLUSTER_MODE)


def require_delta(minor: str, jar: str | None) -> None:
    """Check the jar that has Delta. A jar with another name is a vendor's own, and may be compatible."""
    remedy = f"pass the jars that `flushtracker dist` writes with pyspark {minor}, with --jars"
    if jar is None:
        raise ConfigError(f"Spark {minor} has started without Delta: {remedy}")
    found = _DELTA_JAR.search(jar)
    if found is not None and found[1] != minor:
        raise ConfigError(f"{found[0]} is for Spark {found[1]}, and this is Spark {minor}: {remedy}")


def _delta_jar(session: SparkSession) -> str | None:
    """Where the JVM has loaded Delta from, as far as known; ``None`` if it has no Delta."""
    jvm: Any = session.sparkContext._jvm
    try:
        # This thread's class loader also knows the jars of `--jars`.
        found = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_DELTA)
    except Py4JError:
        return None
    source = found.getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())
