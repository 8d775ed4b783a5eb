"""docker-compose.yml and the Dockerfile, as far as they can be checked without a container engine."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.one_file import CONFIG_VARIABLE, OneFile, read_config
from flushtracker.config.strict_yaml import read_yaml
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.compose_config import COMPOSE_CONFIG, config_with_sinks
from tests.support.manifests import READERS
from tests.support.processes import run_to_end

_ROOT: Final = Path(__file__).parents[3]
_COMPOSE: Final = _ROOT / "docker-compose.yml"
_DOCKERFILE: Final = _ROOT / "Dockerfile"
_SERVICES: Final = {
    "track": "track_flushes",
    "capture": "capture_wal",
    "write": "write_shapes",
    "serve": "serve_shapes",
    "sink": "feed_sinks",
}
"""Program → its service."""


def _check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """Check against the JSON schema of the Compose specification that the checker bundles; nothing is fetched."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return run_to_end(command, timeout=60)


def test_compose_file_follows_the_schema_of_the_compose_specification() -> None:
    """Where there is no engine, the services cannot be started, but their schema can be checked."""
    done = _check_schema(_COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", [_COMPOSE, _DOCKERFILE], ids=lambda path: path.name)
def test_every_file_named_exists(path: Path) -> None:
    """In the checkout: configurations, jobs, and everything that goes into the image."""
    text = path.read_text()
    named = set(re.findall(r"(?<!/opt/flushtracker/)\b(?:conf|deploy|jobs|docker)/[\w./-]*\w", text))
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        named |= set(sources.split())
    assert len(named) >= 3
    assert not [name for name in sorted(named) if not (_ROOT / name).exists()]


def test_password_is_kept_out_of_git_and_of_the_image() -> None:
    """The documented place for it is ``.env``, in the folder that the image is built from."""
    assert "POSTGRES_PASSWORD=… > .env" in (_ROOT / "docs" / "deploying.md").read_text()
    assert "/.env" in (_ROOT / ".gitignore").read_text().splitlines()
    rules = [line for line in (_ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    assert [rule for rule in rules if "env" in rule] == []


def test_image_alone_needs_an_environment_and_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program reads the configuration that is in it."""
    dockerfile = _DOCKERFILE.read_text()
    (path,) = re.findall(rf"^ENV {CONFIG_VARIABLE}=/opt/flushtracker/(\S+) ", dockerfile, re.MULTILINE)
    assert f"COPY docker/entrypoint.sh docker/{path} ./\n" in dockerfile
    file = _ROOT / "docker" / path
    page = (_ROOT / "docs" / "deploying.md").read_text()
    (command,) = re.findall(r"^docker run .*?(?=\n```)", page, re.MULTILINE | re.DOTALL)
    values = {"DATABASE_URL": "postgresql://me:p%40w@db:5433/app", "KAFKA_BOOTSTRAP": "a:1,b:2", "STORAGE": "s3://b/x"}
    assert re.findall(r"--env (\w+)=", command) == [*values]
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    read = {program: READERS[program](file) for program in read_config(file).programs}
    capture = load_capture_config(file)
    assert {"user": "me", "password": "p@w", "port": "5433"}.items() <= capture.postgres.connection.items()
    assert (capture.kafka.bootstrap_servers, capture.acks, str(capture.shapes)) == (
        "a:1,b:2",
        "s3://b/x/acks",
        "/shapes.d",
    )
    assert set(read) == {"track", "capture", "write", "serve"}
    assert f'{capture.shapes}"' in command
    ports = {
        read_config(file).root.mapping(name).text("listen").value.rpartition(":")[2] for name in ("serve", "status")
    }
    assert set(re.findall(r"--publish 127.0.0.1:(\d+):", command)) == ports


def test_all_programs_return_after_the_machine_starts_again() -> None:
    """With ``on-failure`` Docker leaves what had ended well, as all do at a shutdown: the slot would fill the disk."""
    services = yaml.safe_load(_COMPOSE.read_text())["services"]
    restarts = {name: service.get("restart") for name, service in services.items()}
    assert restarts.pop("topics") is None
    assert set(restarts.values()) == {"unless-stopped"}


def test_jobs_share_the_cluster() -> None:
    """A job without a limit takes all cores of a standalone cluster, and the other one waits forever."""
    services = read_yaml(_COMPOSE).mapping("services")
    cores, of_all = [], {}
    for name in services:
        command = [text.value for text in services.mapping(name).optional_texts("command") or ()]
        if "--total-executor-cores" in command:
            of_all[name] = int(command[command.index("--total-executor-cores") + 1])
        elif "--cores" in command:
            cores.append(int(command[command.index("--cores") + 1]))
    assert of_all.keys() == {"track_flushes", "write_shapes"}
    workers = services.mapping("spark-worker").mapping("deploy").optional_integer("replicas", at_least=1) or 1
    assert sum(of_all.values()) <= sum(cores) * workers


def test_every_program_reads_the_one_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the variables of its own service alone. Each sees the folder that it names."""
    services = yaml.safe_load(_COMPOSE.read_text())["services"]
    with_sinks = tmp_path / "flushtracker.yaml"
    with_sinks.write_text(config_with_sinks())
    for program, service in _SERVICES.items():
        with monkeypatch.context() as patched:
            for name, value in services[service]["environment"].items():
                patched.setenv(name, value)
            path = _ROOT / os.environ[CONFIG_VARIABLE]
            assert path == COMPOSE_CONFIG
            config = READERS[program](with_sinks)
            assert set(read_config(with_sinks).programs) == _SERVICES.keys()
            assert services[service].get("profiles") == (None if program in read_config(path).programs else [program])
        assert f"./{path.parent.relative_to(_ROOT)}:/opt/flushtracker/deploy/compose:ro" in services[service]["volumes"]
        if program == "capture":
            assert len(load_shapes(_ROOT / config.shapes)) == 4
    assert services["topics"]["environment"] == services["track_flushes"]["environment"]


def test_status_of_each_program_is_checked_scraped_and_shared() -> None:
    """Health checks, peers and Prometheus' targets name the port on which the program listens."""
    services = yaml.safe_load(_COMPOSE.read_text())["services"]
    path = _ROOT / services["topics"]["environment"][CONFIG_VARIABLE]
    file = OneFile(read_yaml(path))
    targets = set()
    for program, service in _SERVICES.items():
        status = file.status(program)
        assert status is not None
        host, port = status.listen_host, status.listen_port
        assert host == "0.0.0.0", "in a container, 127.0.0.1 is reached by nobody else"  # noqa: S104
        assert f"http://localhost:{port}/readyz" in services[service]["healthcheck"]["test"][-1]
        assert f"127.0.0.1:{port}:{port}" in services[service]["ports"]
        assert file.status_url(program) == f"http://{service}:{port}"
        targets.add(f"{service}:{port}")
    text = (_ROOT / "conf/monitoring/prometheus.yaml").read_text()
    job = "- job_name: flushtracker_sink\n  "
    assert f"# {job}# " in text
    scrapes = yaml.safe_load(text.replace(f"# {job}# ", job))["scrape_configs"]
    assert {target for scrape in scrapes for each in scrape["static_configs"] for target in each["targets"]} == targets


def test_nothing_is_published_beyond_this_machine() -> None:
    """Compose publishes on all interfaces unless told otherwise, past most firewalls; no two services share a port."""
    services = read_yaml(_COMPOSE).mapping("services")
    ports = [text.value for name in services for text in services.mapping(name).optional_texts("ports") or ()]
    assert len(ports) >= 8
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert "127.0.0.1:9470:9470" in ports, "the server of shapes, which integration/test_compose_programs.py asks"


def _run_entrypoint(folder: Path, *arguments: str, **environ: str) -> list[str]:
    """The command that the image's entrypoint runs, printed by stubs for java and spark-submit."""
    for name in ("java", "spark-submit"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        (folder / name).chmod(0o755)
    environ |= {"PATH": f"{folder}:{os.environ['PATH']}", "SPARK_HOME": "/opt/spark"}
    command = [str(_ROOT / "docker" / "entrypoint.sh"), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_image_starts_spark_submit_with_its_arguments(tmp_path: Path) -> None:
    """docker-compose.yml passes only arguments; Spark on Kubernetes passes `driver` first."""
    assert _run_entrypoint(tmp_path, "jobs/x.py", "--config", "a b") == ["spark-submit", "jobs/x.py", "--config", "a b"]
    assert _run_entrypoint(tmp_path, "driver", "--class", "x", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7") == [
        *("spark-submit", "--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.7", "--class", "x")
    ]


def test_image_starts_an_executor_as_spark_on_kubernetes_expects(tmp_path: Path) -> None:
    """JVM options keep their order, ten after nine, and each stays one argument."""
    settings = {
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
    command = _run_entrypoint(tmp_path, "executor", **settings, **options)
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
