"""Privileges on the bucket of :mod:`tests.support.s3_server`: what ``docs/security.md`` has for each program.

A bucket's policy is set by a request that no package of the tests makes, so it is signed here.
"""

import hashlib
import hmac
import json
import re
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from tests.support.object_store import store_config

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
_BUCKET: Final = "arn:aws:s3:::bucket"
_ON_BUCKET: Final = {"s3:ListBucket"}


def documented_actions(kind: str) -> list[str]:
    """The actions that *read*, *append* or *write* stands for."""
    found = re.search(rf"^- \*{kind}\*: (?P<actions>.*)$", _PAGE, re.MULTILINE)
    assert found is not None
    actions = re.findall(r"`(s3:\w+)`", found["actions"])
    for other in re.findall(r"\*(\w+)\*", found["actions"]):
        actions += documented_actions(other)
    return sorted(actions)


def documented_kinds(program: str) -> dict[str, str]:
    """By what a configuration names, such as ``acks``, which of them the program needs there."""
    head = re.search(r"^\| program or job \|(?P<cells>.*)\|$", _PAGE, re.MULTILINE)
    row = re.search(rf"^\| `{program}` \|(?P<cells>.*)\|$", _PAGE[head.end() :] if head else "", re.MULTILINE)
    assert head is not None
    assert row is not None
    cells = ([cell.strip(" `*") for cell in found["cells"].split("|")] for found in (head, row))
    return {name.removeprefix("sink."): kind for name, kind in zip(*cells, strict=True) if kind}


def statements(user: str, folders: Mapping[str, Iterable[str]]) -> list[Mapping[str, object]]:
    """Statements that allow ``user`` the actions by folder, and nothing else."""
    principal, found = {"AWS": [user]}, list[Mapping[str, object]]()
    for folder, actions in folders.items():
        on_objects = sorted({*actions} - _ON_BUCKET)
        if on_objects:
            resource = f"{_BUCKET}/{folder}/*"
            found.append({"Effect": "Allow", "Principal": principal, "Action": on_objects, "Resource": resource})
    if any(_ON_BUCKET & {*actions} for actions in folders.values()):
        found.append({"Effect": "Allow", "Principal": principal, "Action": [*_ON_BUCKET], "Resource": _BUCKET})
    return found


def put_policy(port: int, policy: Sequence[Mapping[str, object]]) -> None:
    """Replace the policy of the bucket of the server at ``port``."""
    body = json.dumps({"Version": "2012-10-17", "Statement": policy}).encode()
    s3, now = store_config(port), datetime.now(timezone.utc)
    headers = {
        "host": f"127.0.0.1:{port}",
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    signed = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    request = "\n".join(["PUT", "/bucket", "policy=", *lines, "", signed, headers["x-amz-content-sha256"]])
    scope = f"{now:%Y%m%d}/{s3.region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])
    key = f"AWS4{s3.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={s3.access_key_id}/{scope}, SignedHeaders={signed}, Signature={signature}"
    )
    url = f"http://127.0.0.1:{port}/bucket?policy="
    urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")).close()
