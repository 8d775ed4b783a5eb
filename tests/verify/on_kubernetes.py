"""What a real API server of Kubernetes makes of the files in conf, without a node: it decodes, admits and stores.

``make verify`` does not run this, because Debian has no such server. With kube-apiserver, etcd and kubectl on the path:
``python -m pytest tests/verify/on_kubernetes.py``.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from flushtracker.local.postgres import HOST, free_port
from flushtracker.process.guarded_process import GuardedProcess
from tests.support.kubectl import Kubectl, server_commands
from tests.support.waiting import wait_until

_CONF: Final = Path(__file__).parents[2] / "conf"
_FOLDERS: Final = ("kubernetes", "kubernetes_executors")
_START_S: Final = 120
_NAMESPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "flushtracker",
        "labels": {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")},
    },
}
_HARD: Final = {"pods": "20", "requests.cpu": "20", "requests.memory": "40Gi", "limits.memory": "40Gi"}
_SECRETS: Final = {
    "flushtracker-postgres": ("password",),
    "flushtracker-store": ("access-key-id", "secret-access-key"),
    "flushtracker-serve": ("secret",),
}
_QUOTA: Final = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": _HARD}}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A server with what the instructions create first, in a namespace that enforces the strictest standard."""
    folder = tmp_path_factory.mktemp("kubernetes")
    running = []
    try:
        for name, command in server_commands(folder, port := free_port()).items():
            running.append(GuardedProcess(name, command, log=folder / f"{name}.log", env=dict(os.environ)))
        kubectl = Kubectl(folder, f"https://{HOST}:{port}")
        wait_until(lambda: kubectl("get", "--raw", "/readyz").returncode == 0, "the server", _START_S)
        kubectl.apply(manifest=_NAMESPACE)
        # In a cluster, controllers make the account, and count what of the quota is used.
        kubectl("create", "serviceaccount", "default")
        kubectl.apply(manifest=_QUOTA)
        counted = {"status": {"hard": _HARD, "used": dict.fromkeys(_HARD, "0")}}
        kubectl(
            "patch", "resourcequota", "all", "--subresource=status", "--type=merge", f"--patch={json.dumps(counted)}"
        )
        for name, keys in _SECRETS.items():
            kubectl("create", "secret", "generic", name, *(f"--from-literal={key}=correct-horse" for key in keys))
        yield kubectl
    finally:
        for process in reversed(running):
            process.stop()


def objects(kubectl: Kubectl, folder: str) -> list[dict[str, Any]]:
    """Those of the kustomization."""
    return list(yaml.safe_load_all(kubectl("kustomize", str(_CONF / folder)).stdout))


def pods(kubectl: Kubectl, folder: str) -> Iterator[dict[str, Any]]:
    """One of each Deployment."""
    for deployment in objects(kubectl, folder):
        if deployment["kind"] == "Deployment":
            template = deployment["spec"]["template"]
            name = f"{deployment['metadata']['name']}-of-{folder.replace('_', '-')}"
            named = {"name": name, "labels": template["metadata"]["labels"]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": template["spec"]}


@pytest.mark.parametrize("folder", _FOLDERS)
def test_every_object_is_stored_without_a_warning_and_needs_no_change_the_next_time(
    kubectl: Kubectl, folder: str
) -> None:
    """An unknown key would be an error, and a pod that breaks the standard a warning."""
    applied = kubectl.apply("-k", str(_CONF / folder))
    assert (applied.returncode, applied.stderr) == (0, "")
    found = kubectl("diff", "--server-side", "-k", str(_CONF / folder))
    assert (found.returncode, found.stdout) == (0, "")
    made = {(each["kind"], each["metadata"]["name"]) for each in objects(kubectl, folder)}
    stored = json.loads(kubectl("get", ",".join({kind for kind, _ in made}), "--output=json").stdout)["items"]
    assert {(each["kind"], each["metadata"]["name"]) for each in stored} >= made


@pytest.mark.parametrize("folder", _FOLDERS)
def test_pods_are_admitted_where_the_standard_is_enforced_and_resources_have_a_quota(
    kubectl: Kubectl, folder: str
) -> None:
    """Then a container without a limit for its memory is refused."""
    for pod in pods(kubectl, folder):
        created = kubectl.apply(manifest=pod)
        assert (created.returncode, created.stderr) == (0, "")


def _misspell(pod: dict[str, Any]) -> None:
    container = pod["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")


def _run_as_root(pod: dict[str, Any]) -> None:
    pod["spec"]["securityContext"]["runAsNonRoot"] = False


def _may_have_less_than_it_needs(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Mi"


def _state_no_limit(pod: dict[str, Any]) -> None:
    del pod["spec"]["containers"][0]["resources"]["limits"]


def _mount_nothing(pod: dict[str, Any]) -> None:
    del pod["spec"]["volumes"][0]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_misspell, "livenesProbe"),
        (_run_as_root, 'violates PodSecurity "restricted:latest"'),
        (_may_have_less_than_it_needs, "must be less than or equal to memory limit"),
        (_state_no_limit, "must specify limits.memory"),
        (_mount_nothing, "volumeMounts[0].name: Not found"),
    ],
)
def test_what_is_wrong_is_refused(kubectl: Kubectl, spoil: Callable[[dict[str, Any]], None], reason: str) -> None:
    """So that the tests above can fail."""
    pod = next(pods(kubectl, "kubernetes"))
    pod["metadata"]["name"] = "spoilt"
    spoil(pod)
    refused = kubectl.apply(manifest=pod)
    assert refused.returncode == 1
    assert reason in refused.stderr
