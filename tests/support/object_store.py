"""A bucket in memory with as much of S3's protocol as a table's log needs; ``python -m tests.support.object_store``.

Clients of Google's object store send the same requests, but for the condition, so it is a bucket on ``gs://``, too.

It prints its port, then a line for each object that is put: the key, and its condition, ``If-None-Match`` or
``x-goog-if-generation-match``. It is for a process of its own, because deltalake holds Python's lock while it waits for
an answer.
"""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, ClassVar, Final
from urllib.parse import parse_qs, unquote, urlparse

from flushtracker.config.storage_config import S3Config

AZURE_ACCOUNT: Final = "devstoreaccount1"
AZURE_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of Azurite, and its key, which is in its documentation: :mod:`tests.support.azurite`."""
AZURE_CONTAINER: Final = "container"
_ENTRY = "<Contents><Key>{}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>{}</Size></Contents>"
_UPLOAD = "<R><Bucket>bucket</Bucket><Key>{0}</Key><UploadId>{0}</UploadId><ETag>x</ETag><Location>x</Location></R>"


def store_config(port: int) -> S3Config:
    """The section ``storage.s3`` for a store on this machine."""
    return S3Config(f"http://127.0.0.1:{port}", "test", "test", "test")


def store_keys(port: int) -> dict[str, dict[str, str]]:
    """The same as keys of ``storage``."""
    s3 = store_config(port)
    assert s3.endpoint is not None
    assert s3.region is not None
    assert s3.access_key_id is not None
    assert s3.secret_access_key is not None
    keys = {"access_key_id": s3.access_key_id, "secret_access_key": s3.secret_access_key}
    return {"s3": {"endpoint": s3.endpoint, "region": s3.region, **keys}}


def store_options(port: int) -> dict[str, str]:
    """deltalake's options for it."""
    return store_config(port).deltalake_options()


def google_options(port: int) -> dict[str, str]:
    """deltalake's options for the same bucket on ``gs://``."""
    account = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
    keys = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account | keys), "ALLOW_HTTP": "true"}


def azure_endpoint(port: int) -> dict[str, str]:
    """deltalake's options for where Azurite is."""
    return {"AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}", "AZURE_ALLOW_HTTP": "true"}


def azure_options(port: int) -> dict[str, str]:
    """All of deltalake's options for its container."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        **azure_endpoint(port),
    }


@contextmanager
def running_store(*, replaces: bool = False) -> Iterator[tuple[int, IO[str]]]:
    """A store of its own: its port, and what it prints. With ``replaces`` it ignores each condition."""
    command = [sys.executable, "-m", "tests.support.object_store", *(["--replaces"] if replaces else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        try:
            yield int(store.stdout.readline()), store.stdout
        finally:
            store.kill()


class Bucket(BaseHTTPRequestHandler):
    """Handles requests for objects of the bucket ``bucket``."""

    replaces: ClassVar = "--replaces" in sys.argv
    objects: ClassVar[dict[str, bytes]] = {}
    lock: ClassVar = threading.Lock()
    parts: ClassVar[dict[str, dict[int, bytes]]] = {}
    protocol_version = "HTTP/1.1"
    # Headers and content in one packet: the client's delayed ACK would cost 40 ms.
    wbufsize = -1

    def do_PUT(self) -> None:
        key, condition = self._key(), self._condition()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        query = parse_qs(urlparse(self.path).query)
        if "partNumber" in query:
            self.parts[query["uploadId"][0]][int(query["partNumber"][0])] = content
        elif not self._put(key, condition, content):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self._answer(200)

    def do_POST(self) -> None:
        key, query = self._key(), parse_qs(urlparse(self.path).query, keep_blank_values=True)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "delete" in query:
            found = re.findall(r"<Key>(.*?)</Key>", content.decode())
            for each in found:
                self.objects.pop(each, None)
            deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in found)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
            return
        if "uploadId" in query:
            self._put(key, "", b"".join(content for _, content in sorted(self.parts.pop(key).items())))
        else:
            self.parts[key] = {}
        self._answer(200, _UPLOAD.format(key).encode())

    def do_GET(self) -> None:
        query = parse_qs(urlparse(self.path).query)
        if "list-type" in query:
            after = query.get("start-after", [""])[0]
            keys = [key for key in sorted(self.objects) if key.startswith(query.get("prefix", [""])[0]) and key > after]
            entries = "".join(_ENTRY.format(key, len(self.objects[key])) for key in keys)
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            self._answer(200, text.encode())
        elif (content := self.objects.get(self._key())) is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
            self._answer(206, content[first : last + 1], f"bytes {first}-{last}/{len(content)}")
        else:
            self._answer(200, content)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        self.objects.pop(self._key(), None)
        self._answer(204)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _key(self) -> str:
        return unquote(urlparse(self.path).path).removeprefix("/bucket/")

    def _condition(self) -> str:
        """The answer of S3, or of Google: there is no such object."""
        generation = self.headers.get("x-goog-if-generation-match")
        return self.headers.get("If-None-Match", "") if generation is None else f"generation={generation}"

    def _put(self, key: str, condition: str, content: bytes) -> bool:
        """Put an object, unless the condition forbids it; returns whether it was put."""
        with self.lock:
            if condition in {"*", "generation=0"} and key in self.objects and not self.replaces:
                return False
            self.objects[key] = content
            print(key, condition, flush=True)  # noqa: T201
            return True

    def _answer(self, status: int, content: bytes = b"", content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
        self.send_header("Content-Length", str(len(content)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()
