"""A bucket in memory with as much of S3's protocol as a table's log needs; ``python -m tests.support.object_store``.

It prints its port, then a line for each object that is put: the key, and its condition ``If-None-Match``. It is for a
process of its own, because deltalake holds Python's lock while it waits for an answer.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlparse

_ENTRY = "<Contents><Key>{}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>{}</Size></Contents>"


class Bucket(BaseHTTPRequestHandler):
    """Handles requests for objects of the bucket ``b``."""

    objects: ClassVar[dict[str, bytes]] = {}
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        key, condition = self._key(), self.headers.get("If-None-Match", "")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if condition == "*" and key in self.objects:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self.objects[key] = content
        print(key, condition, flush=True)  # noqa: T201
        self._answer(200)

    def do_GET(self) -> None:
        query = parse_qs(urlparse(self.path).query)
        if "list-type" in query:
            after = query.get("start-after", [""])[0]
            keys = [key for key in sorted(self.objects) if key.startswith(query.get("prefix", [""])[0]) and key > after]
            entries = "".join(_ENTRY.format(key, len(self.objects[key])) for key in keys)
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            self._answer(200, text.encode())
        elif (key := self._key()) in self.objects:
            self._answer(200, self.objects[key])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _key(self) -> str:
        return unquote(urlparse(self.path).path).removeprefix("/b/")

    def _answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()
