"""Spark's access to object stores: the Hadoop settings from a configuration's ``storage`` and ``spark``, and checks.

They are set in the running JVM, because settings of the session builder appear in the JVM's command line. Executors get
them with each job. The settings of the user's own Spark and Hadoop are only replaced by what the configuration names.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from flushtracker.config.spark_config import HADOOP, SparkConfig
from flushtracker.config.storage_config import AzureConfig, GcsConfig, S3Config
from flushtracker.errors import ConfigError
from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.jars import ABFS_JARS, GCS_JARS, S3_JARS

_S3A: Final = "org.apache.hadoop.fs.s3a"
_STATIC: Final = f"{_S3A}.TemporaryAWSCredentialsProvider,{_S3A}.SimpleAWSCredentialsProvider"
_CHAIN: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""The SDK's own chain supports web identities and profiles, like deltalake's; Hadoop's does not."""

_MODULES: Final = {
    "s3": ("hadoop-aws", S3_JARS),
    "s3a": ("hadoop-aws", S3_JARS),
    "abfs": ("hadoop-azure", ABFS_JARS),
    "abfss": ("hadoop-azure", ABFS_JARS),
    "gs": ("hadoop-gcp", GCS_JARS),  # from Hadoop 3.5 on
}
"""The Hadoop module with a scheme's file system, and its jars."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def jar_sets(paths: Iterable[str]) -> list[JarSet]:
    """The jar sets with the file systems of these paths, each once."""
    schemes = {_scheme(path) for path in paths}
    return list(dict.fromkeys(jars for scheme, (_, jars) in _MODULES.items() if scheme in schemes))


def s3_settings(s3: S3Config) -> dict[str, str | None]:
    """Hadoop's settings from the configuration; ``None`` for a setting that must be unset."""
    found = {
        "fs.s3a.endpoint": s3.endpoint,
        "fs.s3a.endpoint.region": s3.region,
        "fs.s3a.access.key": s3.access_key_id,
        "fs.s3a.secret.key": s3.secret_access_key,
        "fs.s3a.path.style.access": None if s3.path_style is None else str(s3.path_style).lower(),
    }
    settings: dict[str, str | None] = {name: value for name, value in found.items() if value is not None}
    if s3.access_key_id is not None:
        # The environment's token belongs to the environment's keys.
        settings["fs.s3a.session.token"] = s3.session_token
        settings["fs.s3a.aws.credentials.provider"] = _STATIC
    return settings


def azure_settings(azure: AzureConfig) -> dict[str, str]:
    """Hadoop's settings for an account of Azure's public cloud."""
    if azure.account is None or azure.key is None:
        return {}
    return {f"fs.azure.account.key.{azure.account}.dfs.core.windows.net": azure.key}


def gcs_settings(gcs: GcsConfig) -> dict[str, str]:
    if gcs.service_account is None:
        return {}
    return {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": gcs.service_account,
    }


def s3_defaults(s3: S3Config, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Hadoop's settings for which neither the configuration nor Spark has a value: deltalake's defaults."""
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    defaults = {
        "fs.s3.impl": f"{_S3A}.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": f"{_S3A}.S3A",
        "fs.s3a.aws.credentials.provider": f"{_STATIC},{_CHAIN}",
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": region,
        # Stores other than Amazon's seldom have a host per bucket.
        "fs.s3a.path.style.access": "true" if s3.endpoint or endpoint else None,
    }
    return {name: value for name, value in defaults.items() if value}


def set_up_stores(spark: SparkSession, config: SparkConfig, paths: Iterable[str]) -> None:
    """Apply the configuration for object stores, before Spark accesses ``paths``.

    Raises:
        ConfigError: Spark has no file system for one of the paths.
    """
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    storage = config.storage
    for name, value in s3_defaults(storage.s3).items():
        if not _is_chosen(hadoop, name):
            hadoop.set(name, value)
    named = s3_settings(storage.s3) | azure_settings(storage.azure) | gcs_settings(storage.gcs)
    for name, chosen in named.items():
        if chosen is None:
            hadoop.unset(name)
        else:
            hadoop.set(name, chosen)
    for name, value in config.settings.items():
        if name.startswith(HADOOP):
            hadoop.set(name.removeprefix(HADOOP), value)
    for path in paths:
        _require_file_system(spark, hadoop, path)


def _is_chosen(hadoop: Any, name: str) -> bool:
    """Whether it was set by a user, rather than by Hadoop's defaults."""
    sources = hadoop.getPropertySources(name)
    return sources is not None and any(source != "core-default.xml" for source in sources)


def _require_file_system(spark: SparkSession, hadoop: Any, path: str) -> None:
    scheme = _scheme(path)
    if scheme is None:
        return
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, hadoop)
    except Py4JError as error:
        version = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        # Hadoop before 3.5 does not know Google's store, and has no module for it.
        known = None if scheme == "gs" and hadoop.get("fs.gs.impl") is None else _MODULES.get(scheme)
        jars = f"--packages org.apache.hadoop:{known[0]}:{version}" if known else "--jars, or --packages"
        here = f", or on one machine run `{known[1].command}`" if known else ""
        raise ConfigError(
            f"Spark has no file system for {path}: start the job with spark-submit and {jars}, or name the jars in "
            f"spark.jars of the section spark{here}"
        ) from error


def _scheme(path: str) -> str | None:
    found = _SCHEME.match(path)
    return found[1].lower() if found else None
