"""A cluster of Kubernetes with one node, all of whose programs run here, and whose pods are real containers.

It changes the network, mounts and addresses of where it runs, so run it in namespaces of their own, as root:
``unshare --net --mount --pid --fork --mount-proc --kill-child``. These must be on the path: etcd, kube-apiserver,
kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl, containerd with its shim for runc and ctr, runc,
coredns, iptables.
"""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from flushtracker.process.guarded_process import GuardedProcess
from tests.support.kubectl import Kubectl, command, server_commands, write_access
from tests.support.waiting import wait_until

ADDRESS: Final = "10.8.0.1"
"""Of the node, where pods reach also what else listens on this machine."""
NODE: Final = "node"
_PORT: Final = 6443
_SERVER: Final = f"https://{ADDRESS}:{_PORT}"
_START_S: Final = 180
_BRIDGE: Final = "pods0"
_CGROUP: Final = "flushtracker-node"
_TOKEN: Final = "battery-staple"  # noqa: S105  of a server that the tests start and stop
_PAUSE: Final = "docker.io/library/pause:1"

_CTR: Final = ("ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io")

_NETWORK: Final = (
    "ip link set lo up",
    f"ip link add {_BRIDGE} type bridge",
    f"ip address add {ADDRESS}/24 dev {_BRIDGE}",
    f"ip link set {_BRIDGE} up",
    f"ip route add default via {ADDRESS}",
    "sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1",
    "mount --make-rshared /",
    "mount -t tmpfs tmpfs /run",
)
_CNI: Final = f"""{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "{_BRIDGE}", "isGateway": true, "hairpinMode": true, "ipMasq": true,
   "ipam": {{"type": "host-local", "dataDir": "/run/cni", "routes": [{{"dst": "0.0.0.0/0"}}],
            "ranges": [[{{"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.10", "gateway": "{ADDRESS}"}}]]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"""
_CONTAINERD: Final = """version = 3
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
_COREDNS: Final = """.:53 {{
    bind {address}
    errors
    kubernetes cluster.local {{
        kubeconfig {folder}/administrator.yaml it
    }}
    cache 5
}}
"""


def _kubelet_config(folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{_CGROUP}",
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # This machine may have either.
        "failCgroupV1": False,
        "failSwapOn": False,
        # The images are loaded by hand: they must stay, and it must not want them from a registry.
        "imageGCHighThresholdPercent": 100,
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "podLogsDir": str(folder / "pods"),
        "resolvConf": "",
        # A changed ConfigMap is in its pods' files after this.
        "syncFrequency": "10s",
    }


_PROXY: Final = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "clientConnection": {},
    "conntrack": {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
    "hostnameOverride": NODE,
    "mode": "iptables",
}


class KubernetesNode:
    """A context manager in which the cluster runs; ``folder`` has its data and the programs' logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open = ExitStack()

    def __enter__(self) -> "KubernetesNode":
        with ExitStack() as stack:
            for line in _NETWORK:
                subprocess.run(line.split(), check=True)
            self._write_files()
            self._run(stack, self._server())
            self.kubectl = Kubectl(self.folder, _SERVER)
            self._wait_for("get", "--raw", "/readyz")
            self._run(stack, {**self._controllers(), **self._node()})
            self._wait_for("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def load(self, *archives: Path) -> None:
        """Have images, of these archives, on the node."""
        for archive in archives:
            subprocess.run([*_CTR, "images", "import", "--local", str(archive)], check=True)

    def kill(self, container: str) -> None:
        """SIGKILL, to all processes of a container."""
        subprocess.run([*_CTR, "tasks", "kill", "--all", "--signal", "SIGKILL", container], check=True)

    def _run(self, stack: ExitStack, commands: dict[str, list[str]]) -> None:
        for name, line in commands.items():
            process = GuardedProcess(name, line, log=self.folder / f"{name}.log", env=dict(os.environ))
            stack.callback(process.kill)

    def _wait_for(self, *arguments: str) -> None:
        wait_until(lambda: self.kubectl(*arguments).returncode == 0, " ".join(arguments), _START_S)

    def _write_files(self) -> None:
        folder = self.folder
        for each in ("cni", "pods"):
            (folder / each).mkdir()
        (folder / "cni" / "pods.conflist").write_text(_CNI)
        (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=folder, pause=_PAUSE))
        (folder / "Corefile").write_text(_COREDNS.format(folder=folder, address=ADDRESS))
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet_config(folder)))
        proxy = {**_PROXY, "clientConnection": {"kubeconfig": str(folder / "administrator.yaml")}}
        (folder / "proxy.yaml").write_text(yaml.safe_dump(proxy))
        write_access(folder / "administrator.yaml", _SERVER)
        write_access(folder / "node.yaml", _SERVER, _TOKEN)
        for hierarchy in Path("/sys/fs/cgroup").iterdir():
            if (hierarchy / "cgroup.procs").exists():
                (hierarchy / _CGROUP).mkdir(exist_ok=True)
        shares = Path("/sys/fs/cgroup/cpu") / _CGROUP / "cpu.shares"
        if shares.exists():
            # What is beside the pods is in no group, where each process counts as much as a group.
            shares.write_text(str(1024 * (os.cpu_count() or 1)))
        for name in ("cpus", "mems"):
            cpuset = Path("/sys/fs/cgroup/cpuset")
            (cpuset / _CGROUP / f"cpuset.{name}").write_text((cpuset / f"cpuset.{name}").read_text())

    def _server(self) -> dict[str, list[str]]:
        user = (_TOKEN, f"system:node:{NODE}", NODE, "system:nodes")
        server = {
            "advertise-address": ADDRESS,
            "allow-privileged": "false",
            "authorization-mode": "Node,RBAC",
            "bind-address": ADDRESS,
            "enable-admission-plugins": "NodeRestriction",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
        }
        return server_commands(self.folder, _PORT, further=server, users=[user])

    def _controllers(self) -> dict[str, list[str]]:
        folder = self.folder
        access = folder / "administrator.yaml"
        manager = {
            "kubeconfig": access,
            "leader-elect": "false",
            "root-ca-file": folder / "certificates" / "apiserver.crt",
            "service-account-private-key-file": folder / "accounts.key",
        }
        return {
            "kube-controller-manager": command("kube-controller-manager", manager),
            "kube-scheduler": command("kube-scheduler", {"kubeconfig": access, "leader-elect": "false"}),
        }

    def _node(self) -> dict[str, list[str]]:
        folder = self.folder
        kubelet = {
            "config": folder / "kubelet.yaml",
            "hostname-override": NODE,
            "kubeconfig": folder / "node.yaml",
            "node-ip": ADDRESS,
            "root-dir": folder / "kubelet",
        }
        return {
            "containerd": ["containerd", "--config", str(folder / "containerd.toml")],
            "coredns": ["coredns", "-conf", str(folder / "Corefile")],
            "kube-proxy": ["kube-proxy", "--config", str(folder / "proxy.yaml")],
            "kubelet": command("kubelet", kubelet),
        }
