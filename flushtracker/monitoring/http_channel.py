"""``HttpChannel``: a connection of the server that is open for a limited time only, however busy its client looks.

To waitress each byte is progress. A client that sends its request, or reads its answer, byte by byte would keep its
connection forever, and a few hundred of them all that there are.
"""

import time
from typing import Any

from waitress.channel import HTTPChannel


class HttpChannel(HTTPChannel):
    """Knows since when it waits for its client."""

    def __init__(self, *arguments: Any, **adjustments: Any) -> None:
        self.waiting_since = time.monotonic()
        """When it was opened, or its last answer was made."""
        super().__init__(*arguments, **adjustments)

    def service(self) -> None:
        """Answer a request."""
        super().service()
        self.waiting_since = time.monotonic()

    def close_if_late(self, limit_s: float) -> None:
        """Close it if the client has neither sent a whole request nor taken its answer within ``limit_s``.

        For the thread of the server's loop. A request that is being answered, or waits for that, is not late.
        """
        if not self.requests and time.monotonic() - self.waiting_since > limit_s:
            self.handle_close()
