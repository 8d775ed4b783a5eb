"""An endpoint with the credentials of a container, as the agents of Amazon's EKS and ECS serve them, renewed when told.

Their token is empty: versitygw has none.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from flushtracker.local.free_ports import free_port
from tests.support.s3_server import S3Server
from tests.support.waiting import wait_until

_FILE: Final = "credentials"
_LIFE: Final = timedelta(minutes=1)
"""So short that programs get them anew before each use."""


@dataclass
class RenewedCredentials:
    """A running endpoint; ``env`` is what a program needs to find it, and the store."""

    env: dict[str, str]
    _s3: S3Server
    _folder: Path
    _number: int = 0

    def renew(self, stale_s: float) -> None:
        """Serve other credentials, and after ``stale_s`` have the store refuse those before.

        Until then a library that has asked just before may use these again.
        """
        before = self._number
        self.offer()
        time.sleep(stale_s)
        self._s3.refuse(f"key{before}")

    def offer(self) -> None:
        """Serve other credentials."""
        self._number += 1
        self._s3.accept(f"key{self._number}", f"secret{self._number}")
        fields = {
            "AccessKeyId": f"key{self._number}",
            "SecretAccessKey": f"secret{self._number}",
            "Token": "",
            "Expiration": f"{datetime.now(timezone.utc) + _LIFE:%Y-%m-%dT%H:%M:%SZ}",
        }
        new = self._folder / ".new"
        new.write_text(json.dumps(fields))
        new.rename(self._folder / _FILE)


@contextmanager
def renewed_credentials(s3: S3Server, folder: Path) -> Iterator[RenewedCredentials]:
    """Serve the first credentials; ``folder`` is for files."""
    port, token = free_port(), folder / "token"
    token.write_text("token")
    served = folder / "served"
    served.mkdir()
    env = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{port}/{_FILE}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3.port}",
        "AWS_REGION": "test",
        "AWS_ALLOW_HTTP": "true",
    }
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(served)]
    output = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            credentials = RenewedCredentials(env, s3, served)
            credentials.offer()
            wait_until(lambda: _is_served(port), "the endpoint of credentials answers", 30)
            yield credentials
        finally:
            server.kill()


def _is_served(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/{_FILE}", timeout=10)
    except OSError:
        return False
    return True
