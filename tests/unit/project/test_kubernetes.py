"""deploy/kubernetes, as far as it can be checked without a cluster: schemas, and what its parts say of each other."""

from pathlib import Path
from typing import Final

import kubernetes_validate
import pytest
import yaml

from flushtracker.config.serve_config import TailConfig
from flushtracker.config.transport import KafkaTransport
from tests.support.manifests import SCRIPTS, Manifests

_DEPLOY: Final = Path(__file__).parents[3] / "deploy"
_FOLDER: Final = _DEPLOY / "kubernetes"
_EXECUTORS: Final = _DEPLOY / "kubernetes_executors"
_PLAIN: Final = Manifests((_FOLDER / "flushtracker.yaml").read_text())


def test_objects_follow_the_schema_and_their_programs_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the snapshots' job, which `write` does without; they name the same topics and tables, in a bucket."""
    read = _PLAIN.check(tmp_path, monkeypatch)
    assert read.keys() == {"capture", "track", "write", "serve"}
    capture, track, write, serve = (read[name] for name in ("capture", "track", "write", "serve"))
    topics = capture.kafka.topics
    for job in (track, write):
        assert isinstance(job.transport, KafkaTransport)
        assert job.transport.bootstrap_servers == capture.kafka.bootstrap_servers
    assert track.transport.streams == {"fragments": topics.fragments, "flushes": topics.flushes}
    assert write.transport.streams == {"shape_changes": topics.shape_changes, "shapes": topics.shapes}
    assert write.flushes.name == topics.flushes
    assert track.sink.acks == capture.acks == write.acks
    assert (serve.sink.log, serve.sink.shapes) == (write.sink.log, write.sink.shapes)
    assert serve.tail == TailConfig(capture.kafka.bootstrap_servers, topics.shape_changes)
    assert write.tables.publication == capture.postgres.publication
    assert write.tables.connection == capture.postgres.connection
    tables = (track.sink.dead_letters, capture.acks, write.sink.log, write.sink.shapes)
    assert all(str(path).startswith("s3://") for path in (track.state.checkpoint, write.state.checkpoint, *tables))


def test_each_program_has_its_own_secrets_alone() -> None:
    """The instructions create the Secret; the servers cannot read the database."""
    store = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    own = {
        "capture": {"PGPASSWORD", *store},
        "track": store,
        "write": {"PGPASSWORD", *store},
        "serve": {"FLUSHTRACKER_SECRET", *store},
    }
    text = (_FOLDER / "kustomization.yaml").read_text()
    (line,) = (line for line in text.splitlines() if "create secret generic flushtracker " in line)
    for program in _PLAIN.programs:
        secrets = {name: each for name, each in _PLAIN.variables(program).items() if not isinstance(each, str)}
        assert secrets == {name: {"name": "flushtracker", "key": name} for name in own[program]}
        assert all(f"--from-literal={name}=" in line for name in secrets)


def test_kustomization_names_the_file_and_the_image() -> None:
    """``kubectl apply -k`` applies what it lists; the user of the image is that of the pods."""
    kustomization = yaml.safe_load((_FOLDER / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["flushtracker.yaml"]
    (image,) = kustomization["images"]
    images = {_PLAIN.container(program)["image"] for program in _PLAIN.programs}
    assert images == {f"{image['name']}:{image['newTag']}"}
    dockerfile = (_DEPLOY.parent / "Dockerfile").read_text()
    for program in _PLAIN.programs:
        assert f"USER {_PLAIN.pod(program)['securityContext']['runAsUser']}\n" in dockerfile


def test_patches_for_executors_are_of_the_pods_that_are_there() -> None:
    """They keep the driver's script; what is not a patch follows the schema, too."""
    for name in ("account.yaml", "executor.yaml"):
        for manifest in yaml.safe_load_all((_EXECUTORS / name).read_text()):
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    kustomization = yaml.safe_load((_EXECUTORS / "kustomization.yaml").read_text())
    patches = [yaml.safe_load((_EXECUTORS / each["path"]).read_text()) for each in kustomization["patches"]]
    assert {patch["metadata"]["name"] for patch in patches} == {"flushtracker-track", "flushtracker-write"}
    for patch in patches:
        program = patch["metadata"]["name"].removeprefix("flushtracker-")
        (container,) = patch["spec"]["template"]["spec"]["containers"]
        assert container["name"] == _PLAIN.container(program)["name"]
        assert container["args"][-1] == f"jobs/{SCRIPTS[program]}.py"
    secrets = [line.split() for line in (_EXECUTORS / "spark.conf").read_text().splitlines() if "secretKeyRef" in line]
    named = {setting.rpartition(".")[2]: value for setting, value in secrets}
    assert named == {name: f"flushtracker:{name}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
