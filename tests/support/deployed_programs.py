"""The programs of conf/kubernetes in pods of a :class:`~tests.support.kubernetes_node.KubernetesNode`."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final, TypeVar
from urllib.request import urlopen

import yaml

from flushtracker.wal.lsn import parse_lsn
from tests.support.kubernetes_node import KubernetesNode
from tests.support.pod_services import PASSWORD, PodServices
from tests.support.waiting import wait_until

JOBS: Final = ("track", "write", "snapshot")
PROGRAMS: Final = ("capture", *JOBS, "serve")
READY_S: Final = 400
_PAUSE_S: Final = 2
_CONFIRMED_S: Final = 300
_CONF: Final = Path(__file__).parents[2] / "conf"
_STORAGE: Final = "storage: {s3: {region: eu-central-1}}"
_GET: Final = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"

_Found = TypeVar("_Found")


class DeployedPrograms:
    """The node with everything on it."""

    def __init__(self, node: KubernetesNode, services: PodServices) -> None:
        self.node = node
        self.kubectl = node.kubectl
        self.services = services

    def objects(self, folder: str = "kubernetes") -> list[dict[str, Any]]:
        """Those of a kustomization, with this store, and for a node that has fewer processors than they ask for."""
        text = self.done("kustomize", str(_CONF / folder))
        assert text.count(_STORAGE) == len(PROGRAMS)
        found = list(yaml.safe_load_all(text.replace(_STORAGE, self.services.storage())))
        for each in found:
            if each["kind"] == "Deployment":
                (container,) = each["spec"]["template"]["spec"]["containers"]
                container["resources"]["requests"]["cpu"] = "50m"
            elif "spark.conf" in each.get("data", {}):
                each["data"]["spark.conf"] += "spark.kubernetes.executor.request.cores 50m\n"
        return found

    def apply(self, *manifests: dict[str, Any]) -> None:
        applied = self.kubectl.apply(manifest={"apiVersion": "v1", "kind": "List", "items": manifests})
        assert (applied.returncode, applied.stderr) == (0, "")

    def done(self, *arguments: str) -> str:
        """The output of kubectl, which must succeed."""
        done = self.kubectl(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self, program: str) -> list[dict[str, Any]]:
        """Those that are not being deleted."""
        return self._pods(_label(program))

    def executors(self) -> list[dict[str, Any]]:
        """The pods of executors that run."""
        return [pod for pod in self._pods("spark-role=executor") if pod["status"]["phase"] == "Running"]

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        found = json.loads(self.done("get", "pods", f"--selector={selector}", "--output=json"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def statuses(self, program: str) -> list[dict[str, Any]]:
        """Of the containers of its pods."""
        return [status for pod in self.pods(program) for status in pod["status"].get("containerStatuses", [])]

    def exit_codes(self, program: str) -> list[int]:
        """Of its containers that have ended and were, or will be, started again."""
        return [ended["exitCode"] for ended in self._ended(program)]

    def reasons(self, program: str) -> list[str]:
        """Why its containers ended, as the kubelet says."""
        return [ended["reason"] for ended in self._ended(program)]

    def _ended(self, program: str) -> list[dict[str, Any]]:
        states = [state for status in self.statuses(program) for state in (status["state"], status["lastState"])]
        return [state["terminated"] for state in states if "terminated" in state]

    def wait(self, condition: Callable[[], _Found | None], what: str, timeout_s: float = READY_S) -> _Found:
        """As ``wait_until``, but seldom enough for kubectl, which takes half a second of a processor."""
        return wait_until(condition, what, timeout_s, pause_s=_PAUSE_S)

    def wait_ready(self, *programs: str) -> None:
        """Until all replicas of each are ready."""
        for program in programs:
            self.done("rollout", "status", f"deployment/flushtracker-{program}", f"--timeout={READY_S}s")

    def kill(self, pod: dict[str, Any]) -> None:
        """SIGKILL, to all processes of its container."""
        (status,) = pod["status"]["containerStatuses"]
        self.node.kill(status["containerID"].rpartition("/")[2])

    def status(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The status document of its program, from this machine."""
        with urlopen(f"http://{pod['status']['podIP']}:9464/status.json") as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def confirm(self) -> str:
        """Change a row, wait until the slot is confirmed past it, and return what was written."""
        text = f"at {time.time()}"
        self.services.postgres.execute(f"INSERT INTO orders (what) VALUES ('{text}')")  # noqa: S608  a number
        end = self.services.postgres.execute("SELECT pg_current_wal_lsn()")[0][0]
        wait_until(lambda: self.confirmed() >= parse_lsn(end), f"the slot is confirmed up to {end}", _CONFIRMED_S)
        return text

    def confirmed(self) -> int:
        rows = self.services.postgres.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots")
        return parse_lsn(rows[0][0]) if rows else 0

    def served(self, shape: str = "orders") -> list[str]:
        """The texts that a client in another pod gets of a shape, by the Service."""
        url = f"http://flushtracker-serve:9470/v1/shape?shape={shape}&offset=-1&secret={PASSWORD}"
        answer = self.kubectl("exec", "deployment/flushtracker-capture", "--", "python", "-c", _GET, url)
        # Until the shape has a snapshot, or while capture starts again, there is none.
        messages = json.loads(answer.stdout) if answer.returncode == 0 else []
        return [message["value"]["what"] for message in messages if "value" in message]

    def wait_served(self, *texts: str) -> None:
        """Until a client gets all of these."""
        self.wait(lambda: {*texts} <= {*self.served()}, "the rows are served", _CONFIRMED_S)

    def wait_gone(self, pods: list[dict[str, Any]]) -> None:
        """Until these pods are removed."""
        names = [f"pod/{pod['metadata']['name']}" for pod in pods]
        self.done("wait", "--for=delete", *names, f"--timeout={READY_S}s")

    @contextmanager
    def watch(self, program: str) -> Iterator[list[dict[str, Any]]]:
        """Note each state of its pods; the list is complete after the block."""
        seen: list[dict[str, Any]] = []
        command = self.kubectl.command("get", "pods", f"--selector={_label(program)}", "--watch", "--output=json")
        with subprocess.Popen(command, env=self.kubectl.environment, stdout=subprocess.PIPE, text=True) as watching:
            lines = watching.stdout
            assert lines is not None
            reader = Thread(target=lambda: seen.extend(_documents(lines)))
            reader.start()
            try:
                yield seen
            finally:
                watching.kill()
                reader.join()


def _label(program: str) -> str:
    return f"app.kubernetes.io/component={program}"


def _documents(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """Each document ends with a line that has only its last brace."""
    text = ""
    for line in lines:
        text += line
        if line == "}\n":
            yield json.loads(text)
            text = ""
