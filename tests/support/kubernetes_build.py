"""Builds what a node needs of Go modules: ``python -m tests.support.kubernetes_build FOLDER``.

:mod:`tests.support.kubernetes_node` has the node. It needs a Go of 1.26 on the path, and a quarter of an hour.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_KUBERNETES: Final = "k8s.io/kubernetes"
_VERSION: Final = "1.36.3"
_PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_COREDNS: Final = "github.com/coredns/coredns"
_PLUGINS: Final = ("bind", "cache", "errors", "kubernetes")
_ENVIRONMENT: Final = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
_PAUSE: Final = """package main
// It has the namespaces of a pod, and does nothing until it is stopped.
import ("os"; "os/signal"; "syscall")
func main() { c := make(chan os.Signal, 1); signal.Notify(c, syscall.SIGTERM); <-c }
"""


def build(folder: Path) -> None:
    """Build all programs into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    mains = [f"{_KUBERNETES}/cmd/{name}" for name in _PROGRAMS]
    version = f"-X k8s.io/component-base/version.gitVersion=v{_VERSION}"
    _build(folder, {_KUBERNETES: f"v{_VERSION}"}, mains, replaced=_staging(), link=version)
    programs = ("containerd", "containerd-shim-runc-v2", "ctr")
    _build(folder, {_CONTAINERD: "v2.3.7"}, [f"{_CONTAINERD}/cmd/{name}" for name in programs])
    imports = "".join(f'import _ "{_COREDNS}/plugin/{name}"\n' for name in _PLUGINS)
    coredns = f'package main\nimport "{_COREDNS}/coremain"\n{imports}func main() {{ coremain.Run() }}\n'
    _build(folder, {_COREDNS: "v1.13.1"}, ["coredns"], own=coredns)
    _build(folder, {}, ["pause"], own=_PAUSE)


def _staging() -> str:
    """Kubernetes' own go.mod leads to folders for its parts, which the module has not: name the parts' modules."""
    command = ["go", "mod", "download", "-json", f"{_KUBERNETES}@v{_VERSION}"]
    answer = subprocess.run(command, capture_output=True, check=True)
    text = Path(json.loads(answer.stdout)["GoMod"]).read_text()
    parts = re.findall(r"^\s*(\S+) => \./staging/", text, re.MULTILINE)
    return "".join(f"replace {part} => {part} v0{_VERSION.removeprefix('1')}\n" for part in parts)


def _build(
    folder: Path,
    required: Mapping[str, str],
    mains: list[str],
    *,
    own: str | None = None,
    replaced: str = "",
    link: str = "",
) -> None:
    """Build main packages of a module, or a program of our ``own``, in a module that requires it."""
    with tempfile.TemporaryDirectory() as scratch:
        module = Path(scratch, mains[0].rpartition("/")[2])
        module.mkdir()
        lines = "".join(f"require {name} {version}\n" for name, version in required.items())
        (module / "go.mod").write_text(f"module {module.name}\ngo 1.26.0\n{lines}{replaced}")
        if own:
            (module / "main.go").write_text(own)
        command = ["go", "build", "-mod=mod", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w {link}"]
        command += ["-tags=no_btrfs,no_zfs", "-o", f"{folder.absolute()}/", *(["."] if own else mains)]
        subprocess.run(command, cwd=module, env={**os.environ, **_ENVIRONMENT}, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
