"""What a real API server of Kubernetes makes of conf/kubernetes, without a node: it decodes, admits and stores.

``make verify`` does not run this, because Debian has no such server. With kube-apiserver, etcd and kubectl on the path:
``python -m pytest tests/verify/on_kubernetes.py``.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from flushtracker.local.postgres import HOST, free_port
from flushtracker.process.guarded_process import GuardedProcess
from tests.support.waiting import wait_until

_FOLDER: Final = Path(__file__).parents[2] / "conf" / "kubernetes"
_START_S: Final = 120
_NAMESPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "flushtracker",
        "labels": {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")},
    },
}
_HARD: Final = {"pods": "10", "requests.cpu": "10", "requests.memory": "20Gi", "limits.memory": "20Gi"}
_SECRETS: Final = {
    "flushtracker-postgres": ("password",),
    "flushtracker-store": ("access-key-id", "secret-access-key"),
    "flushtracker-serve": ("secret",),
}
_QUOTA: Final = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": _HARD}}
_TOKEN: Final = "correct-horse"  # noqa: S105  of a server that the tests start and stop


class Kubectl:
    """kubectl with a configuration of its own in ``folder``, so that it reaches this server and no other cluster."""

    def __init__(self, folder: Path, address: str) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "kubectl.yaml"),
        }
        entries: dict[str, dict[str, object]] = {
            "clusters": {"cluster": {"server": address, "insecure-skip-tls-verify": True}},
            "users": {"user": {"token": _TOKEN}},
            "contexts": {"context": {"cluster": "it", "user": "it", "namespace": "flushtracker"}},
        }
        lists = {key: [{"name": "it", **value}] for key, value in entries.items()}
        (folder / "kubectl.yaml").write_text(yaml.safe_dump({"current-context": "it", **lists}))

    def __call__(self, *arguments: str, manifest: object = None) -> "subprocess.CompletedProcess[str]":
        """Run it with these arguments, and the manifest as its input."""
        text = None if manifest is None else json.dumps(manifest)
        return subprocess.run(
            ["kubectl", *arguments], input=text, capture_output=True, text=True, env=self._environment, check=False
        )

    def apply(self, *arguments: str, manifest: object = None) -> "subprocess.CompletedProcess[str]":
        """Apply on the server; an unknown key, and any warning, is an error."""
        strictly = ("--server-side", "--validate=strict", "--warnings-as-errors")
        return self("apply", *strictly, *(arguments or ("-f", "-")), manifest=manifest)


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A server with what the instructions create first, in a namespace that enforces the strictest standard."""
    folder = tmp_path_factory.mktemp("kubernetes")
    running = []
    try:
        for name, command in _commands(folder, port := free_port()):
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


def _commands(folder: Path, port: int) -> list[tuple[str, list[str]]]:
    """etcd, and the API server on ``port``, with everything in ``folder``."""
    key, tokens = folder / "accounts.key", folder / "tokens.csv"
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key.write_bytes(made.private_bytes(*form))
    tokens.write_text(f"{_TOKEN},somebody,somebody,system:masters\n")
    clients, peers = (f"http://{HOST}:{free_port()}" for _ in range(2))
    etcd = {
        "data-dir": folder / "etcd",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
    }
    server = {
        "etcd-servers": clients,
        "bind-address": HOST,
        "secure-port": port,
        "cert-dir": folder / "certificates",
        "service-account-issuer": "https://flushtracker.test",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-cluster-ip-range": "10.0.0.0/24",
        "token-auth-file": tokens,
    }
    programs = {"etcd": etcd, "kube-apiserver": server}
    return [(name, [name, *(f"--{flag}={value}" for flag, value in flags.items())]) for name, flags in programs.items()]


def objects(kubectl: Kubectl) -> list[dict[str, Any]]:
    """Those of the kustomization."""
    return list(yaml.safe_load_all(kubectl("kustomize", str(_FOLDER)).stdout))


def pods(kubectl: Kubectl) -> Iterator[dict[str, Any]]:
    """One of each Deployment."""
    for deployment in objects(kubectl):
        if deployment["kind"] == "Deployment":
            template = deployment["spec"]["template"]
            named = {"name": deployment["metadata"]["name"], "labels": template["metadata"]["labels"]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": template["spec"]}


def test_every_object_is_stored_without_a_warning_and_needs_no_change_the_next_time(kubectl: Kubectl) -> None:
    """An unknown key would be an error, and a pod that breaks the standard a warning."""
    applied = kubectl.apply("-k", str(_FOLDER))
    assert (applied.returncode, applied.stderr) == (0, "")
    found = kubectl("diff", "--server-side", "-k", str(_FOLDER))
    assert (found.returncode, found.stdout) == (0, "")
    made = {(each["kind"], each["metadata"]["name"]) for each in objects(kubectl)}
    stored = json.loads(kubectl("get", ",".join({kind for kind, _ in made}), "--output=json").stdout)["items"]
    assert {(each["kind"], each["metadata"]["name"]) for each in stored} >= made


def test_pods_are_admitted_where_the_standard_is_enforced_and_resources_have_a_quota(kubectl: Kubectl) -> None:
    """Then a container without a limit for its memory is refused."""
    for pod in pods(kubectl):
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
    pod = next(pods(kubectl))
    pod["metadata"]["name"] = "spoilt"
    spoil(pod)
    refused = kubectl.apply(manifest=pod)
    assert refused.returncode == 1
    assert reason in refused.stderr
