"""conf/kubernetes, as far as it can be checked without a cluster: the schemas, and what its parts say of each other."""

import copy
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import load_write_config
from flushtracker.jobs.snapshot.program import STOP_TIMEOUT_S as SNAPSHOT_STOP_S
from flushtracker.serve.program import STOP_TIMEOUT_S as SERVE_STOP_S
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.spark.job_run import STOP_TIMEOUT_S as JOB_STOP_S

_FOLDER: Final = Path(__file__).parents[2] / "conf" / "kubernetes"
_OBJECTS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    (manifest["kind"], manifest["metadata"]["name"]): manifest
    for path in sorted(_FOLDER.glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
    if manifest["kind"] != "Kustomization"
}
_JOBS: Final = ("track", "write", "snapshot")
_PROGRAMS: Final = (*_JOBS, "capture")
_DEPLOYED: Final = (*_PROGRAMS, "serve")


def _validate(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


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


@pytest.mark.parametrize("key", _OBJECTS, ids="/".join)
def test_object_follows_the_schema_of_kubernetes(key: tuple[str, str]) -> None:
    """Strictly: an unknown key is an error, too."""
    _validate(_OBJECTS[key])


def test_misspelt_key_is_reported() -> None:
    """The check above fails where it should."""
    wrong = copy.deepcopy(_OBJECTS["Deployment", "flushtracker-track"])
    container = wrong["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        _validate(wrong)


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


def test_servers_of_shapes_run_beside_each_other_and_read_what_the_jobs_write(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write to a folder of their own alone, and their secret is in no file."""
    spec, container = _OBJECTS["Deployment", "flushtracker-serve"]["spec"], _container("serve")
    assert (spec["replicas"], "strategy" in spec) == (2, False)
    assert _pod("serve")["securityContext"] == _pod("track")["securityContext"]
    monkeypatch.setenv(container["env"][-1]["name"], "correct-horse")
    served = load_serve_config(mounted / "etc/flushtracker/serve.yaml")
    write = load_write_config(mounted / "etc/flushtracker/write.yaml")
    assert (served.sink.log, served.sink.shapes) == (write.sink.log, write.sink.shapes)
    assert (served.http.listen, served.http.secret) == ("0.0.0.0:9470", "correct-horse")
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounts == {"/etc/flushtracker": True, "/tmp": False}  # noqa: S108  a volume of the pod
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert served.status is not None
    assert ports == {"shapes": served.http.listen_port, "status": served.status.listen_port}
    service = _OBJECTS["Service", "flushtracker-serve"]["spec"]
    assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    probes = {container[f"{name}Probe"]["httpGet"]["port"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"status"}
    assert spec["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(ports["status"])


def test_draining_nodes_takes_one_server_of_shapes_at_a_time_and_waits_for_no_other_program() -> None:
    """A budget on the one pod of a job would keep its node from being drained."""
    (budget,) = (manifest["spec"] for (kind, _), manifest in _OBJECTS.items() if kind == "PodDisruptionBudget")
    spec = _OBJECTS["Deployment", "flushtracker-serve"]["spec"]
    assert budget["selector"] == spec["selector"]
    assert 0 < budget["maxUnavailable"] < spec["replicas"]


def test_servers_that_are_not_ready_do_not_keep_their_node_from_being_drained() -> None:
    """By default a budget counts them: two that wait for the first tables would stop every drain."""
    (budget,) = (manifest["spec"] for (kind, _), manifest in _OBJECTS.items() if kind == "PodDisruptionBudget")
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_server_of_shapes_answers_until_its_service_has_forgotten_it() -> None:
    """It refuses connections once it is told to stop; and the grace period covers that delay and its own deadline."""
    (command,) = (hook["exec"]["command"] for hook in _container("serve")["lifecycle"].values())
    assert (command[0], "preStop" in _container("serve")["lifecycle"]) == ("sleep", True)
    assert _pod("serve")["terminationGracePeriodSeconds"] > int(command[1]) + SERVE_STOP_S


@pytest.mark.parametrize(
    ("program", "stop_s"), [("track", JOB_STOP_S), ("write", JOB_STOP_S), ("snapshot", SNAPSHOT_STOP_S)]
)
def test_a_job_has_ended_by_itself_before_its_grace_period_is_over(program: str, stop_s: float) -> None:
    """A stop that hangs ends with a line that says so, rather than with SIGKILL."""
    assert _pod(program)["terminationGracePeriodSeconds"] > stop_s


@pytest.mark.parametrize("job", _JOBS)
def test_a_job_in_one_pod_has_a_task_for_each_partition_whatever_its_node_has(job: str, mounted: Path) -> None:
    """``local[*]`` may be a Python process for each processor of the node; the limit of memory is for four."""
    arguments = _container(job)["args"]
    found = re.fullmatch(r"local\[(\d+)\]", arguments[arguments.index("--master") + 1])
    assert found is not None
    state = yaml.safe_load((mounted / "etc/flushtracker" / f"{job}.yaml").read_text()).get("state")
    assert int(found[1]) == (4 if state is None else state["shuffle_partitions"])


@pytest.mark.parametrize("job", _JOBS)
def test_nobody_who_reaches_a_pod_can_end_a_batch_on_sparks_page(job: str) -> None:
    """Spark shows the page without a password, by default with links that do."""
    arguments = _container(job)["args"]
    assert ("--conf", "spark.ui.killEnabled=false") in pairwise(arguments)


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


def test_configurations_load_and_meet(mounted: Path) -> None:
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


def test_the_documented_way_to_remove_a_shape_names_what_is_there() -> None:
    """No command can edit the file there: its mount is read-only."""
    shapes = {mount["name"]: mount for mount in _container("capture")["volumeMounts"]}["shapes"]
    assert shapes["readOnly"] is True
    operating = (_FOLDER.parents[1] / "docs" / "operating.md").read_text()
    named = set(re.findall(r"edit configmap (\S+)", operating))
    assert named == {volume["configMap"]["name"] for volume in _pod("capture")["volumes"] if volume["name"] == "shapes"}
    assert all(_OBJECTS["ConfigMap", name]["data"].keys() == {"shapes.yaml"} for name in named)
    assert set(re.findall(r"deployment/(\S+)", operating)) == {"flushtracker-capture"}
