"""Azurite, Microsoft's stand-in for Azure's object store, behind a proxy that fails as told, and lists as Azure does.

Azure lists blobs and folders in one order of their names. Azurite lists all blobs before all folders, so hadoop-azure,
which compares neighbours, finds a folder twice: as the blob that marks it, and as the beginning of others' names.
``python -m tests.support.azurite PORT DELAY`` is the proxy, which corrects that and nothing else.

Azurite is a package of npm, with 360 MB of others, from the lock file in ``tests/verify/azurite``.
"""

import base64
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Final

from flushtracker.local.free_ports import free_port
from tests.support.faulty_proxy import FaultyProxy, Handler, faulty_proxy, main
from tests.support.object_store import AZURE_ACCOUNT, AZURE_CONTAINER, AZURE_KEY
from tests.support.processes import run_to_end
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_LOCKED: Final = _ROOT / "tests" / "verify" / "azurite"
_INSTALLED: Final = _ROOT / "data" / "verify" / "azurite"
_ENTRY: Final = re.compile(rb"<Blob>.*?</Blob>|<BlobPrefix>.*?</BlobPrefix>", re.DOTALL)
_NAME: Final = re.compile(rb"<Name>(.*?)</Name>")


def install() -> None:
    """Install it as the lock file has it, unless that is there."""
    lock = (_LOCKED / "package-lock.json").read_bytes()
    done = _INSTALLED / "installed.json"
    if done.exists() and done.read_bytes() == lock:
        return
    shutil.rmtree(_INSTALLED, ignore_errors=True)
    _INSTALLED.mkdir(parents=True)
    for file in _LOCKED.iterdir():
        shutil.copy(file, _INSTALLED)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "5"]
    npm = run_to_end(command, cwd=_INSTALLED, timeout=600)
    assert npm.returncode == 0, npm.stderr
    done.write_bytes(lock)


@contextmanager
def running_azurite() -> Iterator[FaultyProxy]:
    """The proxy before a server of its own, with an empty container."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="flushtracker-azurite-") as folder:
        # The libraries' protocols are newer than those that it knows, but not what we need of them.
        options = ["--location", folder, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        program = _INSTALLED / "node_modules" / ".bin" / "azurite-blob"
        with subprocess.Popen(
            [str(program), "--blobPort", str(port), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server:
            try:
                wait_until(lambda: server.poll() is not None or _has_container(port), "Azurite answers", 60)
                assert server.poll() is None, f"Azurite ended with {server.returncode}"
                with faulty_proxy(port, module=__name__) as proxy:
                    yield proxy
            finally:
                server.kill()


def _has_container(port: int) -> bool:
    """Create it, in a request that is signed as Azure demands."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    place = f"/{AZURE_ACCOUNT}/{AZURE_CONTAINER}"
    lines = [
        *(f"{name}:{value}" for name, value in headers.items()),
        f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{AZURE_CONTAINER}",
    ]
    signed = "\n".join(["PUT", *[""] * 11, *lines, "restype:container"])
    signature = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", f"{place}?restype=container", headers=headers)
        answer = connection.getresponse()
    except OSError:
        return False
    finally:
        connection.close()
    assert answer.status == 201, f"Azurite creates no container: {answer.status}"
    return True


class _OneOrder(Handler):
    """Lists blobs and folders in one order of their names."""

    def answered(self, content: bytes) -> bytes:
        entries = _ENTRY.findall(content) if "comp=list" in self.path else []
        if not entries:
            return content
        ordered = sorted(entries, key=lambda entry: _NAME.findall(entry)[0])
        begin, end = content.index(b"<Blobs>"), content.index(b"</Blobs>")
        return content[:begin] + b"<Blobs>" + b"".join(ordered) + content[end:]


if __name__ == "__main__":
    main(_OneOrder)
