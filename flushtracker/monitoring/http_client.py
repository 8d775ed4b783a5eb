"""``fetch``: asks a near program over HTTP, which may answer anything, slowly, or not at all."""

import time
import urllib.request
from typing import Final

_MAX_BYTES: Final = 1_048_576
_CHUNK: Final = 65_536


def fetch(url: str, timeout_s: float) -> bytes:
    """The body of the answer, of which each step may take ``timeout_s``, and so may its body as a whole.

    A header that comes byte by byte is not limited; who must not wait for it asks in a thread.

    HTTP and HTTPS only, directly whatever the environment says about proxies, and without following redirects.

    Raises:
        OSError: nothing answers in time, or the answer is an HTTP error.
        HTTPException: what answers does not speak HTTP.
        ValueError: the answer is too large.
    """
    deadline = time.monotonic() + timeout_s
    body = b""
    with _OPENER.open(url, timeout=timeout_s) as response:
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > _MAX_BYTES:
                raise ValueError(f"its answer is larger than {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"its answer took longer than {timeout_s:g} s")
    return body


def fetch_failure(error: Exception) -> str:
    """Why :func:`fetch` has failed, in a few words."""
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason) or type(reason).__name__


def _opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener


_OPENER: Final = _opener()
