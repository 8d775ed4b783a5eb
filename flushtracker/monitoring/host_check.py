"""``is_meant_for``: whether a request names this machine, as a check against DNS rebinding.

A page of any site may have its own name resolve to 127.0.0.1. To the browser that is still its site, so it may read
what a server on the loopback address answers; but the browser sends the site's name as ``Host``.
"""

import re
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")


def is_meant_for(listen_host: str, host: str | None) -> bool:
    """Whether a server that listens on ``listen_host`` answers a request with this header ``Host``.

    One on the loopback address answers to ``localhost``, addresses, and the name under which it listens. No browser
    leaves the header out.

    >>> [is_meant_for("127.0.0.1", host) for host in ("localhost:9464", "[::1]:9464", "site.example:9464")]
    [True, True, False]
    >>> is_meant_for("0.0.0.0", "site.example:9464")
    True
    """
    if host is None or not (listen_host == "localhost" or _is_loopback(listen_host)):
        return True
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found[1] or found[2] or "").lower()
    return name in ("localhost", listen_host.lower()) or _is_address(name)


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False
