"""``Manifests``: objects of Kubernetes that run the programs, and what must be true of them without a cluster."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.job_config import load_config
from flushtracker.config.one_file import CONFIG_VARIABLE, read_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.write_config import load_write_config
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.sinks.job.feed_config import load_feed_config

READERS: Final[Mapping[str, Callable[[Path], Any]]] = {
    "track": load_config,
    "capture": load_capture_config,
    "write": load_write_config,
    "snapshot": load_snapshot_config,
    "serve": load_serve_config,
    "sink": load_feed_config,
}
"""With which each program reads ``flushtracker.yaml``."""
SCRIPTS: Final = {"track": "track_flushes", "write": "write_shapes", "snapshot": "snapshot_shapes"}


class Manifests:
    """The objects of YAML documents, by kind and name; each Deployment is of the program after the release's name."""

    def __init__(self, text: str, release: str = "flushtracker") -> None:
        documents = list(yaml.safe_load_all(text))
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in documents}
        assert len(self.objects) == len(documents), "two objects have one name"
        self._release = release
        self.programs = {name.removeprefix(f"{release}-") for kind, name in self.objects if kind == "Deployment"}

    def pod(self, program: str) -> dict[str, Any]:
        spec: dict[str, Any] = self._of("Deployment", program)["spec"]["template"]["spec"]
        return spec

    def container(self, program: str) -> dict[str, Any]:
        (container,) = self.pod(program)["containers"]
        assert isinstance(container, dict)
        return container

    def variables(self, program: str) -> dict[str, Any]:
        """The environment of a program, by name: a text, or the Secret and its key."""
        found: list[dict[str, Any]] = self.container(program)["env"]
        return {each["name"]: each.get("value") or each["valueFrom"]["secretKeyRef"] for each in found}

    def check(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Check all; return what each program reads of its file. ``folder`` is a new one, for what is mounted."""
        for manifest in self.objects.values():
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        read = {program: self._read(program, folder / program, monkeypatch) for program in sorted(self.programs)}
        for program in self.programs:
            self._check_process(program)
            self._check_status(program, read[program].status)
        return read

    def _of(self, kind: str, program: str) -> dict[str, Any]:
        found: dict[str, Any] = self.objects[kind, f"{self._release}-{program}"]
        return found

    def _read(self, program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """With the files and variables of its own container alone."""
        path = Path(self.variables(program)[CONFIG_VARIABLE])
        for mounted, files in self._mounted(program).items():
            inside = folder / mounted.relative_to("/")
            inside.mkdir(parents=True)
            for name, text in files.items():
                (inside / name).write_text(text)
        with monkeypatch.context() as patched:
            for name, value in self.variables(program).items():
                patched.setenv(name, value if isinstance(value, str) else "correct-horse")
            config = READERS[program](folder / path.relative_to("/"))
            file = read_config(folder / path.relative_to("/"))
        assert set(file.programs) == self.programs
        if program == "capture":
            assert load_shapes(folder / config.shapes.relative_to("/"))
        return config

    def _mounted(self, program: str) -> dict[Path, dict[str, str]]:
        """The files of the ConfigMaps, by where the pod has them; all else that it has is empty, or a Secret."""
        volumes = {volume["name"]: volume for volume in self.pod(program)["volumes"]}
        found = {}
        for mount in self.container(program)["volumeMounts"]:
            volume = volumes.pop(mount["name"])
            if "configMap" in volume:
                found[Path(mount["mountPath"])] = self.objects["ConfigMap", volume["configMap"]["name"]]["data"]
            else:
                assert volume.keys() & {"emptyDir", "secret"}
        assert not volumes, "a volume that is not mounted"
        return found

    def _check_process(self, program: str) -> None:
        """A new pod must not start beside the old one: of two drivers, or two readers of a slot, one fails."""
        spec, container = self._of("Deployment", program)["spec"], self.container(program)
        if program != "serve":
            assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
        if program in SCRIPTS:
            assert container["args"][-1] == f"jobs/{SCRIPTS[program]}.py"
        else:
            assert (container["command"][-1], container["args"][0]) == ("flushtracker", program)
        assert self.pod(program)["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        selector, labels = spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert labels["app.kubernetes.io/component"] == program, "by which Prometheus names the job"
        others = [self._of("Deployment", other)["spec"]["selector"]["matchLabels"] for other in self.programs]
        assert others.count(selector) == 1

    def _check_status(self, program: str, status: StatusConfig | None) -> None:
        """The port, the probes, the annotations, the service and the configuration agree."""
        assert status is not None
        container, template = self.container(program), self._of("Deployment", program)["spec"]["template"]["metadata"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {probe["port"] for probe in probes.values()} == {"status"}
        paths = {name: probe["path"] for name, probe in probes.items()}
        assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
        assert (status.listen_host, status.listen_port) == ("0.0.0.0", ports["status"])  # noqa: S104  of a pod
        assert template["annotations"]["prometheus.io/port"] == str(ports["status"])
        service = self._of("Service", program)["spec"]
        assert service["selector"].items() <= template["labels"].items()
        wanted = [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]
        assert sorted(service["ports"], key=str) == sorted(wanted, key=str)
        assert set(status.peers) == {self._url(other) for other in self.programs - {program}}

    def _url(self, program: str) -> str:
        (port,) = (port["port"] for port in self._of("Service", program)["spec"]["ports"] if port["name"] == "status")
        assert port == 9464 + PROGRAMS.index(program)
        return f"http://{self._release}-{program}:{port}"
