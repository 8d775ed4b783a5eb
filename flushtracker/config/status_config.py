"""Where a program serves its status over HTTP, and its peers.

Nothing is authenticated or encrypted, so choose an address that only operators can reach.
"""

import re
from dataclasses import dataclass
from typing import Final

from flushtracker.config.strict_yaml import YamlMapping

_LISTEN: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})", re.ASCII
)
_PEER: Final = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?(?:/[!-~]*)?", re.ASCII)
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class StatusConfig:
    """``listen_port`` 0 takes any free port. ``peers`` are base URLs of other programs' status, without a last /."""

    listen_host: str
    listen_port: int
    peers: tuple[str, ...] = ()

    @property
    def listen(self) -> str:
        """Host and port as in the file.

        >>> StatusConfig("::1", 9464).listen
        '[::1]:9464'
        """
        host = f"[{self.listen_host}]" if ":" in self.listen_host else self.listen_host
        return f"{host}:{self.listen_port}"

    @property
    def own_url(self) -> str:
        """The base URL by which a process on the same host reaches it.

        >>> StatusConfig("0.0.0.0", 9464).own_url, StatusConfig("::", 9464).own_url
        ('http://127.0.0.1:9464', 'http://[::1]:9464')
        """
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen_host, self.listen_host)  # noqa: S104  a lookup
        return f"http://{StatusConfig(host, self.listen_port).listen}"


def read_listen(section: YamlMapping) -> tuple[str, int]:
    """The host and the port at the key ``listen``; raises ``ConfigError``."""
    found = _LISTEN.fullmatch(section.text("listen").value)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise section.wrong("listen", "a host and a port, such as 127.0.0.1:9464 or [::1]:9464")
    return found["ipv6"] or found["host"], int(found["port"])


def is_status_url(text: str) -> bool:
    """Whether this is the base URL of a program's status, without credentials.

    >>> is_status_url("http://127.0.0.1:9464"), is_status_url("127.0.0.1:9464"), is_status_url("http://me:pw@job")
    (True, False, False)
    """
    return _PEER.fullmatch(text) is not None and not set("@?#") & set(text)
