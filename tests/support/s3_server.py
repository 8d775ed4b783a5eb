"""A real server with the API of S3, which :mod:`tests.support.go_programs` has built.

It has the bucket and the keys of the stand-in, which are in :mod:`tests.support.object_store`.
"""

import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from flushtracker.local.free_ports import free_port
from tests.support.go_programs import S3_SERVER
from tests.support.object_store import store_config
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class S3Server:
    """A running server; ``folder`` has the objects of its bucket as files, whose times are those of the objects."""

    port: int
    folder: Path
    pid: int

    def accept(self, access_key_id: str, secret_access_key: str, role: str = "admin") -> None:
        """Let whoever has this key do everything; or, in the role ``user``, what the bucket's policy allows."""
        self._administer("create-user", "--role", role, "--access", access_key_id, "--secret", secret_access_key)

    def refuse(self, access_key_id: str) -> None:
        """Accept a key no longer."""
        self._administer("delete-user", "--access", access_key_id)

    def _administer(self, *command: str) -> None:
        s3 = store_config(self.port)
        keys = {"ADMIN_ACCESS_KEY_ID": s3.access_key_id, "ADMIN_SECRET_ACCESS_KEY": s3.secret_access_key}
        place = {"ADMIN_ENDPOINT_URL": s3.endpoint, "ADMIN_REGION": s3.region}
        env = {**os.environ, **{name: str(value) for name, value in (keys | place).items()}}
        subprocess.run([str(S3_SERVER.path), "admin", *command], env=env, check=True, capture_output=True)

    def age(self, key: str, seconds: float) -> None:
        """Make an object, or all below a key that ends in a slash, that much older."""
        path = self.folder / key
        for file in path.rglob("*") if key.endswith("/") else [path]:
            if file.is_file():
                then = file.stat().st_mtime - seconds
                os.utime(file, (then, then))


@contextmanager
def running_s3(place: Path | None = None, *, address: str = "127.0.0.1", port: int | None = None) -> Iterator[S3Server]:
    """A server of its own at ``address``; without a ``place`` for its bucket, nothing is kept."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-s3-") as scratch:
        root, metadata, users = (Path(place or scratch, name) for name in ("root", "metadata", "users"))
        for folder in (root / "bucket", metadata, users):
            folder.mkdir(parents=True, exist_ok=True)
        port = port or free_port()
        config = {name: str(value) for name, value in asdict(store_config(port)).items()}
        options = ["--port", f"{address}:{port}", "--region", config["region"], "--quiet", "--keep-alive"]
        # A key is refused from when it was deleted.
        options += ["--iam-dir", str(users), "--iam-cache-disable"]
        # Not every file system has the attributes that it would use otherwise.
        command = [str(S3_SERVER.path), *options, "posix", "--sidecar", str(metadata), str(root)]
        keys = {"ROOT_ACCESS_KEY_ID": config["access_key_id"], "ROOT_SECRET_ACCESS_KEY": config["secret_access_key"]}
        output = subprocess.DEVNULL
        with subprocess.Popen(command, env={**os.environ, **keys}, stdout=output, stderr=output) as server:
            try:
                wait_until(lambda: server.poll() is not None or _answers(port), "the server of S3 answers", 30)
                assert server.poll() is None, f"the server of S3 ended with {server.returncode}"
                yield S3Server(port, root / "bucket", server.pid)
            finally:
                server.kill()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/bucket", timeout=10)
    except urllib.error.HTTPError:
        # It refuses what is not signed.
        return True
    except OSError:
        return False
    return True
