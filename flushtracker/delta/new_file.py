"""``new_file``: a file that is being added to a table's folder; while its store does not answer, other threads run.

deltalake holds the GIL for the request that begins a file, as long as its client tries. So what goes to an object store
is written to a temporary file first, and then sent by a client that gives up a request after 5 s. If it cannot begin,
a request that releases the GIL waits for the store, before it is sent again. Only if a part of the file takes longer
than that has the next attempt more time for each request, and may hold the GIL for so long.
"""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from flushtracker.config.storage_path import local_folder
from flushtracker.delta.storage import PAUSE_S, StoreFiles, storage_reason
from flushtracker.delta.temporary_file import temporary_failed, temporary_file
from flushtracker.errors import SinkError

BEGIN_S: Final = 5
_MORE_TIME: Final = 3
_RETRIED_S: Final = 180.0
"""As long as the store's client tries by default."""
_BUFFER_BYTES: Final = 1 << 20
_REFUSED: Final = re.compile(r"status code\W+4(?!08|29)\d\d ")
"""What another attempt does not change: all but a timeout, and too many requests."""


@contextmanager
def new_file(storage: StoreFiles, path: str) -> Iterator[IO[bytes] | pa.NativeFile]:
    """What is written to this becomes the file ``path``, which is complete at the end of the ``with``.

    Raises ``DeltaError`` or ``OSError``, also if the disk of temporary files is full.
    """
    if local_folder(storage.uri) is not None:
        with _buffered(storage.open_output_stream(path)) as stream:
            yield stream
        return
    with _named():
        content = temporary_file()
    try:
        yield (written := _Content(content))
        written.flush()
        _send(storage, path, content)
    finally:
        # It would write again what has failed.
        with suppress(OSError):
            content.close()


@contextmanager
def _named() -> Iterator[None]:
    """Have errors of temporary files say so, as what all callers expect of a store."""
    try:
        yield
    except OSError as error:
        raise OSError(str(temporary_failed(error))) from error
    except SinkError as error:
        raise OSError(str(error)) from error


class _Content:
    """A temporary file, whose errors say so."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        with _named():
            return self._file.write(data)

    def flush(self) -> None:
        with _named():
            self._file.flush()

    def tell(self) -> int:
        return self._file.tell()


def _send(storage: StoreFiles, path: str, content: IO[bytes]) -> None:
    until_s, request_s = time.monotonic() + _RETRIED_S, BEGIN_S
    while True:
        has_begun = False
        try:
            content.seek(0)
            with _buffered(storage.given_up_after(request_s).open_output_stream(path)) as stream:
                has_begun = True
                shutil.copyfileobj(content, stream, _BUFFER_BYTES // 2)
        except (DeltaError, OSError) as error:
            if _REFUSED.search(storage_reason(error)) or time.monotonic() > until_s:
                raise
        else:
            return
        request_s *= _MORE_TIME if has_begun else 1
        time.sleep(PAUSE_S)
        storage.get_file_info([path])


def _buffered(stream: pa.NativeFile) -> pa.BufferedOutputStream:
    """Wrap a stream of deltalake's, which accepts only bytes; only Arrow's buffered stream passes bytes."""
    return pa.BufferedOutputStream(stream, _BUFFER_BYTES)
