"""What requests to an object store cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

PRICES: Final = {"PUT": 5.0, "LIST": 5.0, "GET": 0.4, "DELETE": 0.0}
"""US dollars for a million requests: S3 Standard in us-east-1. Of storage and traffic there is little."""
_MONTH_S: Final = 730 * 3600


def counted(requests: Sequence[str], among: float) -> dict[str, float]:
    """How many of each price, of requests as the proxy lists them, for each of ``among``."""
    found = Counter(map(_kind, requests))
    return {kind: found[kind] / among for kind in PRICES}


def month(requests: Mapping[str, float], every_s: float) -> str:
    """The price of a month in which these are made so often."""
    return f"${sum(count * PRICES[kind] for kind, count in requests.items()) / 1e6 * _MONTH_S / every_s:,.2f}"


def _kind(request: str) -> str:
    method = request.partition(" ")[0]
    if "list-type" in request:
        return "LIST"
    if "?delete" in request:
        return "DELETE"
    return {"POST": "PUT", "HEAD": "GET"}.get(method, method)
