"""conf/kubernetes, as far as it can be checked without a cluster: the schemas, and what its parts say of each other."""

from itertools import chain
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import TailConfig, load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import load_write_config
from flushtracker.shapes.shapes_file import load_shapes

_FOLDER: Final = Path(__file__).parents[3] / "conf" / "kubernetes"
_OBJECTS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    (manifest["kind"], manifest["metadata"]["name"]): manifest
    for path in sorted(_FOLDER.glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
    if manifest["kind"] != "Kustomization"
}
_EXECUTORS: Final = _FOLDER.with_name("kubernetes_executors")
_PROGRAMS: Final = ("track", "write", "snapshot", "capture")
_DEPLOYED: Final = (*_PROGRAMS, "serve")


def _pod(program: str) -> dict[str, Any]:
    spec: dict[str, Any] = _OBJECTS["Deployment", f"flushtracker-{program}"]["spec"]["template"]["spec"]
    return spec


def _container(program: str) -> dict[str, Any]:
    (container,) = _pod(program)["containers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """The files of all ConfigMaps, each where a pod has it, under this folder."""
    for program in _DEPLOYED:
        volumes = {volume["name"]: volume for volume in _pod(program)["volumes"]}
        for mount in _container(program)["volumeMounts"]:
            if "configMap" in (volume := volumes[mount["name"]]):
                folder = tmp_path / mount["mountPath"].lstrip("/")
                folder.mkdir(parents=True, exist_ok=True)
                for name, text in _OBJECTS["ConfigMap", volume["configMap"]["name"]]["data"].items():
                    (folder / name).write_text(text)
    return tmp_path


def test_objects_follow_the_schema_of_kubernetes() -> None:
    """Strictly: an unknown key is an error, too. The patches for executors have only what they change."""
    executors = [yaml.safe_load_all((_EXECUTORS / name).read_text()) for name in ("account.yaml", "executor.yaml")]
    for manifest in chain(_OBJECTS.values(), *executors):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_kustomization_lists_every_file() -> None:
    """``kubectl apply -k`` applies what it lists, and names the image that the pods have."""
    kustomization = yaml.safe_load((_FOLDER / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in _FOLDER.iterdir()}
    assert {image["name"] for image in kustomization["images"]} == {_container(name)["image"] for name in _DEPLOYED}


@pytest.mark.parametrize("program", _PROGRAMS)
def test_one_process_at_a_time_which_is_not_root(program: str) -> None:
    """A new pod must not start beside the old one: of two drivers, or two readers of a slot, one fails."""
    spec = _OBJECTS["Deployment", f"flushtracker-{program}"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert _pod(program)["securityContext"]["runAsNonRoot"]
    assert _container(program)["securityContext"]["readOnlyRootFilesystem"]
    assert f"USER {_pod(program)['securityContext']['runAsUser']}\n" in (_FOLDER.parents[1] / "Dockerfile").read_text()


@pytest.mark.parametrize("program", _PROGRAMS)
def test_probes_ask_the_port_that_the_program_listens_on(program: str, mounted: Path) -> None:
    """The port, the probes, the annotations, the service and the configuration agree."""
    container = _container(program)
    (port,) = container["ports"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    paths = {name: probe["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}

    template = _OBJECTS["Deployment", f"flushtracker-{program}"]["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    service = _OBJECTS["Service", f"flushtracker-{program}"]["spec"]
    assert service["selector"].items() <= template["labels"].items()
    assert service["ports"] == [{"name": port["name"], "port": port["containerPort"], "targetPort": port["name"]}]

    status = yaml.safe_load((mounted / "etc" / "flushtracker" / f"{program}.yaml").read_text())["status"]
    assert status["listen"] == f"0.0.0.0:{port['containerPort']}"
    others = {other for other in _PROGRAMS if other != program}
    assert set(status["peers"]) == {f"http://flushtracker-{other}:{port['containerPort']}" for other in others}
    assert all(("Service", f"flushtracker-{other}") in _OBJECTS for other in others)


def test_configurations_load_and_meet(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs' own readers take them; they name the same topics and tables, in a bucket."""
    named = {name: [arg for arg in _container(name)["args"] if arg.endswith(".yaml")] for name in _PROGRAMS}
    assert named == {name: [f"/etc/flushtracker/{name}.yaml"] for name in _PROGRAMS}
    track = load_config(mounted / "etc/flushtracker/track.yaml")
    capture = load_capture_config(mounted / "etc/flushtracker/capture.yaml")
    assert isinstance(track.transport, KafkaTransport)
    assert track.transport.bootstrap_servers == capture.kafka.bootstrap_servers
    assert track.transport.streams == {
        "fragments": capture.kafka.topics.fragments,
        "flushes": capture.kafka.topics.flushes,
    }
    assert track.sink.acks == capture.acks
    write = load_write_config(mounted / "etc/flushtracker/write.yaml")
    assert write.acks == capture.acks
    assert isinstance(write.transport, KafkaTransport)
    assert {write.transport.bootstrap_servers} == {capture.kafka.bootstrap_servers}
    assert (write.transport.streams, write.flushes.name) == (
        {"shape_changes": capture.kafka.topics.shape_changes, "shapes": capture.kafka.topics.shapes},
        capture.kafka.topics.flushes,
    )
    snapshot = load_snapshot_config(mounted / "etc/flushtracker/snapshot.yaml")
    assert (snapshot.sink.log, snapshot.sink.shapes) == (write.sink.log, write.sink.shapes)
    assert snapshot.postgres.publication == capture.postgres.publication
    assert snapshot.postgres.connection == capture.postgres.connection
    assert snapshot.trigger_ms is not None
    monkeypatch.setenv(_container("serve")["env"][-1]["name"], "correct-horse")
    served = load_serve_config(mounted / "etc/flushtracker/serve.yaml")
    assert (served.sink.log, served.sink.shapes) == (write.sink.log, write.sink.shapes)
    assert served.tail == TailConfig(capture.kafka.bootstrap_servers, capture.kafka.topics.shape_changes)
    tables = (track.sink.dead_letters, capture.acks, write.sink.log, write.sink.shapes)
    assert all(str(path).startswith("s3://") for path in (track.state.checkpoint, write.state.checkpoint, *tables))
    assert len(load_shapes(mounted / str(capture.shapes).lstrip("/"))) == 1


def test_everything_that_a_pod_names_exists() -> None:
    """ConfigMaps are here; the Secrets are the operator's, and the instructions create them. No pod keeps anything."""
    text = (_FOLDER / "kustomization.yaml").read_text()
    for program in _DEPLOYED:
        for volume in _pod(program)["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in _OBJECTS
            else:
                assert "emptyDir" in volume
        for variable in _container(program).get("env", []):
            secret = variable["valueFrom"]["secretKeyRef"]
            (line,) = (line for line in text.splitlines() if f"create secret generic {secret['name']} " in line)
            assert f"--from-literal={secret['key']}=" in line
