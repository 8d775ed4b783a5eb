"""``storage`` and ``spark``: one section for deltalake and Spark, and no secret in sight."""

from pathlib import Path
from typing import Final

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.spark_config import SparkConfig
from flushtracker.config.storage_config import AzureConfig, GcsConfig, S3Config
from flushtracker.config.write_config import load_write_config
from flushtracker.spark.object_stores import azure_settings, gcs_settings, s3_defaults, s3_settings
from tests.support.config_files import ConfigFile

TRACK: Final = ConfigFile("job.yaml", load_config)

MINIMAL: Final = """\
postgres: {host: db}
kafka: h:1
shapes: shapes.yaml
"""
STORAGE: Final = """\
storage:
  path: s3://b
  s3:
    endpoint: http://127.0.0.1:9000
    region: eu-west-1
    access_key_id: AKIA
    secret_access_key: "${SECRET}"
    session_token: "${SECRET}-token"
    path_style: true
"""
FURTHER: Final = "  options: {AWS_REGION: other, timeout: 10s}\n"
OPTIONS: Final = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "AWS_SESSION_TOKEN": "hunter2-token",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
}


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")


def test_one_section_is_for_deltalake_and_for_spark(tmp_path: Path) -> None:
    """Further options of deltalake are added to it, and win."""
    config = TRACK.load(tmp_path, STORAGE + FURTHER + MINIMAL)
    assert dict(config.sink.storage_options) == OPTIONS | {"AWS_REGION": "other", "timeout": "10s"}
    assert s3_settings(config.spark.storage.s3) == {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.endpoint.region": "eu-west-1",
        "fs.s3a.access.key": "AKIA",
        "fs.s3a.secret.key": "hunter2",
        "fs.s3a.session.token": "hunter2-token",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.aws.credentials.provider": (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
            "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        ),
    }
    assert "hunter2" not in repr(config)


def test_keys_of_azure_and_google_are_for_both_sides(tmp_path: Path) -> None:
    """Each side has its own names for them."""
    stores = 'storage: {path: x, azure: {account: acc0, key: "${SECRET}"}, gcs: {service_account: /key.json}}\n'
    config = TRACK.load(tmp_path, stores + MINIMAL)
    assert dict(config.sink.storage_options) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "acc0",
        "AZURE_STORAGE_ACCOUNT_KEY": "hunter2",
        "GOOGLE_SERVICE_ACCOUNT": "/key.json",
    }
    storage = config.spark.storage
    assert azure_settings(storage.azure) == {"fs.azure.account.key.acc0.dfs.core.windows.net": "hunter2"}
    assert gcs_settings(storage.gcs) == {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": "/key.json",
    }
    assert "hunter2" not in repr(config)


def test_it_is_that_of_every_program(tmp_path: Path) -> None:
    (file := tmp_path / "flushtracker.yaml").write_text(STORAGE + MINIMAL)
    sinks = [load_write_config(file).sink, load_snapshot_config(file).sink, load_serve_config(file).sink]
    options = [*(sink.storage_options for sink in sinks), load_capture_config(file).storage_options]
    assert [dict(each) for each in options] == [OPTIONS] * 4


def test_without_its_keys_the_environment_counts(tmp_path: Path) -> None:
    """Nothing is set for deltalake, which reads the environment itself; Spark gets what Hadoop does not read."""
    assert TRACK.load(tmp_path, "storage: data\n" + MINIMAL).spark == SparkConfig()
    assert s3_settings(S3Config()) == azure_settings(AzureConfig()) == gcs_settings(GcsConfig()) == {}
    environ = {"AWS_ENDPOINT_URL": "https://store", "AWS_DEFAULT_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    defaults = s3_defaults(S3Config(), environ)
    assert defaults["fs.s3a.endpoint"] == "https://store"
    assert defaults["fs.s3a.endpoint.region"] == "eu"
    assert defaults["fs.s3a.path.style.access"] == "true"
    assert defaults["fs.s3a.aws.credentials.provider"].endswith("DefaultCredentialsProvider")
    assert "fs.s3a.path.style.access" not in s3_defaults(S3Config(), {})
    assert "hunter2" not in str(defaults)


def test_token_of_the_environment_is_not_taken_with_keys_of_the_file() -> None:
    """It belongs to other keys, and the store would refuse the request."""
    assert s3_settings(S3Config(access_key_id="a", secret_access_key="b"))["fs.s3a.session.token"] is None  # noqa: S106


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        ("gs: {}", "storage.gs is not a known key; did you mean gcs?"),
        ("azure: {account: a-b, key: hunter2}", "storage.azure.account is 'a-b', not the name of a storage"),
        ("azure: {account: abc}", "storage.azure.key is missing"),
        ("gcs: {key: hunter2}", "storage.gcs.key is not a known key; known keys: service_account"),
        ("s3: {url: x}", "storage.s3.url is not a known key; known keys: endpoint, region"),
        ("s3: {endpoint: store:9000}", "storage.s3.endpoint is 'store:9000', not a URL that starts with"),
        ("s3: {access_key_id: a}", "storage.s3.access_key_id needs access_key_id and secret_access_key"),
        ("s3: {session_token: a}", "storage.s3.session_token needs access_key_id and secret_access_key"),
        ("s3: {path_style: 'yes'}", "storage.s3.path_style is 'yes', not true or false"),
    ],
)
def test_wrong_stores_are_refused(tmp_path: Path, stores: str, message: str) -> None:
    """With the key, and without a value that may be a secret."""
    error = TRACK.refusal(tmp_path, f"storage: {{path: x, {stores}}}\n{MINIMAL}")
    assert message in error
    assert "hunter2" not in error


@pytest.mark.parametrize("section", ["", "track: "])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{master: yarn}", "spark.master is not the full name of a Spark setting, which begins with spark."),
        ("{spark.sql.extensions: x}", "spark.spark.sql.extensions is set by this program, for Delta"),
        ("{spark.ssl.keyPassword: hunter2}", "spark.spark.ssl.keyPassword may be a secret, and would be in"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, section: str, settings: str, message: str) -> None:
    """In the options of all jobs, or of one."""
    spark = f"track: {{spark: {settings}}}" if section else f"spark: {settings}"
    error = TRACK.refusal(tmp_path, f"storage: x\n{spark}\n{MINIMAL}")
    assert f"{section.replace(': ', '.')}{message}" in error
    assert "hunter2" not in error


def test_settings_of_hadoop_may_be_secret(tmp_path: Path) -> None:
    """They are set in the JVM rather than in its command line."""
    config = TRACK.load(tmp_path, 'storage: x\nspark: {spark.hadoop.fs.azure.account.key.x: "${SECRET}"}\n' + MINIMAL)
    assert dict(config.spark.settings) == {"spark.hadoop.fs.azure.account.key.x": "hunter2"}
    assert "hunter2" not in repr(config)
