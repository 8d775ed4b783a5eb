"""``LiveClient``: follows a shape over HTTP for a benchmark, by long polling or by server-sent events.

It reads nothing of an answer but where it ends, so that thousands of them fit into one process.
"""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

_OFFSET: Final = re.compile(rb"electric-offset: (\S+)")
_HANDLE: Final = re.compile(rb"electric-handle: (\S+)")
_LENGTH: Final = re.compile(rb"content-length: (\d+)")
_CURSOR: Final = re.compile(rb"electric-cursor: (\d+)")
_SEEN: Final = b'"global_last_seen_lsn":"'
_AGAIN_S: Final = 0.2
_MOST_BYTES: Final = 1 << 22

Got = Callable[[bytes, float], None]


class LiveClient:
    """``asked`` says which shape, as in ``shape=users``; ``got`` is called with the messages of each answer, and when
    they came (``time.time``).

    ``address`` is the client's own, because so many connections need more ports than one address has.
    """

    def __init__(self, port: int, asked: str, got: Got, *, sse: bool = False, address: str = "127.0.0.1") -> None:
        self._port, self._asked, self._got, self._sse, self._address = port, asked, got, sse, address
        self.answers = self.refusals = 0
        self._place = b"offset=now"

    async def run(self) -> None:
        """Follow until it is cancelled; it begins again after a refusal, and connects again."""
        while True:
            with suppress(OSError, EOFError, asyncio.LimitOverrunError):
                await self._connection()
                continue
            self.refusals += 1
            await asyncio.sleep(_AGAIN_S)

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(self._address, 0), limit=_MOST_BYTES
        )
        with closing(writer):
            while True:
                is_stream = self._sse and b"live=true" in self._place
                # HTTP/1.0 has no chunks.
                version, more = (b"1.0", b"&live_sse=true") if is_stream else (b"1.1", b"")
                target = b"/v1/shape?%s&%s%s" % (self._asked.encode(), self._place, more)
                writer.write(b"GET %s HTTP/%s\r\nhost: localhost\r\n\r\n" % (target, version))
                head = await reader.readuntil(b"\r\n\r\n")
                if b" 200 " not in head[:16]:
                    self._place = b"offset=now"
                    raise OSError(head[:40])
                if is_stream:
                    await self._events(reader, _found(_HANDLE, head))
                    return
                await self._answer(reader, head)

    async def _answer(self, reader: asyncio.StreamReader, head: bytes) -> None:
        body, at_s = await reader.readexactly(int(_found(_LENGTH, head))), time.time()
        live = b"&live=true" if b"electric-up-to-date" in head else b""
        cursor = b"".join(b"&cursor=" + each for each in _CURSOR.findall(head))
        self._place = b"offset=%s&handle=%s%s%s" % (_found(_OFFSET, head), _found(_HANDLE, head), live, cursor)
        self.answers += 1
        self._got(body, at_s)

    async def _events(self, reader: asyncio.StreamReader, handle: bytes) -> None:
        held = b""
        while data := await reader.read(1 << 18):
            at_s = time.time()
            whole, ends, held = (held + data).rpartition(b"\n\n")
            if ends:
                self.answers += 1
                self._got(whole, at_s)
            if (place := whole.rfind(_SEEN)) >= 0:
                lsn = whole[place + len(_SEEN) :].partition(b'"')[0]
                self._place = b"offset=%s_0&handle=%s&live=true" % (lsn, handle)


def _found(pattern: "re.Pattern[bytes]", head: bytes) -> bytes:
    match = pattern.search(head)
    if match is None:
        raise OSError(f"an answer has no {pattern.pattern.decode()}")
    return match[1]
