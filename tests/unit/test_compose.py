"""docker-compose.yml and the Dockerfile, as far as they can be checked without an engine to run them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from flushtracker.config.job_config import KafkaTransport, load_config
from flushtracker.config.strict_yaml import read_yaml
from flushtracker.kafka.kafka_config import load_kafka_config

_ROOT: Final = Path(__file__).parents[2]
_COMPOSE: Final = _ROOT / "docker-compose.yml"
_DOCKERFILE: Final = _ROOT / "Dockerfile"


def _check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """By the JSON schema of the Compose specification, which the checker brings along: nothing is fetched."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_compose_file_follows_the_schema_of_the_compose_specification() -> None:
    """It cannot be started where there is no engine, so this is how it is known to be one."""
    done = _check_schema(_COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_misspelt_key_of_the_compose_file_would_be_noticed(tmp_path: Path) -> None:
    """The check above says no where it should."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(_COMPOSE.read_text().replace("healthcheck:", "healthchek:"))
    done = _check_schema(wrong)
    assert done.returncode == 1
    assert "healthchek" in done.stdout


def test_services_wait_only_for_what_can_be_waited_for() -> None:
    """Compose refuses to wait for the health of a service without a health check, but only when it is started."""
    services = read_yaml(_COMPOSE).mapping("services")
    waited = []
    for name in services:
        needed = services.mapping(name).optional_mapping("depends_on")
        for other in needed or ():
            condition = needed.mapping(other).text("condition").value if needed else ""
            waited.append((name, other))
            assert condition == ("service_completed_successfully" if other == "topics" else "service_healthy")
            assert other == "topics" or "healthcheck" in services.mapping(other), f"{name} waits for {other}"
    assert ("track_flushes", "spark-worker") in waited


@pytest.mark.parametrize("path", [_COMPOSE, _DOCKERFILE], ids=lambda path: path.name)
def test_every_file_that_is_named_exists(path: Path) -> None:
    """Of the checkout: configurations, jobs and whatever the image is made of."""
    text = path.read_text()
    named = set(re.findall(r"\b(?:conf|jobs|docker)/[\w./-]+", text))
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        named |= set(sources.split())
    assert len(named) >= 3
    assert not [name for name in sorted(named) if not (_ROOT / name).exists()]


def test_image_gets_all_that_it_copies() -> None:
    """.dockerignore keeps everything out but what it names."""
    kept = set(re.findall(r"^!(\S+)$", (_ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = re.findall(r"^COPY (.+) \S+$", _DOCKERFILE.read_text(), re.MULTILINE)
    assert {source.partition("/")[0] for sources in copied for source in sources.split()} == kept


def test_images_are_pinned() -> None:
    """To a version, not to whatever is the latest."""
    images = re.findall(r"^(?:FROM|\s+image:) (\S+)$", _COMPOSE.read_text() + _DOCKERFILE.read_text(), re.MULTILINE)
    assert len(images) == 4
    assert all(re.search(r":\d+\.\d+", image) for image in images), images


def test_job_reads_the_topics_that_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """By two files, one for each program."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "kafka:9092")
    source = load_config(_ROOT / "conf" / "cluster.yaml").transport
    kafka = load_kafka_config(_ROOT / "conf" / "compose_kafka.yaml")
    assert isinstance(source, KafkaTransport)
    assert (source.bootstrap_servers, source.fragments, source.flushes) == (
        kafka.bootstrap_servers,
        kafka.topics.fragments,
        kafka.topics.flushes,
    )
    assert kafka.topics == load_kafka_config(_ROOT / "conf" / "kafka.yaml").topics
    assert kafka.replication_factor == 1


def _run_entrypoint(folder: Path, *arguments: str, **environ: str) -> list[str]:
    """The command that the image's entry turns into, as stand-ins for Java and spark-submit print it."""
    for name in ("java", "spark-submit"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        (folder / name).chmod(0o755)
    environ |= {"PATH": f"{folder}:{os.environ['PATH']}", "SPARK_HOME": "/opt/spark"}
    command = [str(_ROOT / "docker" / "entrypoint.sh"), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_image_starts_spark_submit_with_what_it_is_given(tmp_path: Path) -> None:
    """As docker-compose.yml does; Spark on Kubernetes says `driver` before it."""
    assert _run_entrypoint(tmp_path, "jobs/x.py", "--config", "a b") == ["spark-submit", "jobs/x.py", "--config", "a b"]
    assert _run_entrypoint(tmp_path, "driver", "--class", "x", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7") == [
        *("spark-submit", "--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.7", "--class", "x")
    ]


def test_image_starts_an_executor_as_spark_on_kubernetes_asks(tmp_path: Path) -> None:
    """With its JVM's options in their order, ten after nine, and each one argument."""
    asked = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "1408m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "exec-3",
    }
    options = {f"SPARK_JAVA_OPT_{number}": f"-Doption={number} of 11" for number in range(11)}
    command = _run_entrypoint(tmp_path, "executor", **asked, **options)
    assert command[:14] == ["java", *options.values(), "-Xms1408m", "-Xmx1408m"]
    assert command[14:16] == ["-cp", "/opt/spark/conf:/opt/spark/jars/*"]
    assert command[16].endswith(".KubernetesExecutorBackend")
    assert dict(zip(command[17::2], command[18::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "exec-3",
    }
