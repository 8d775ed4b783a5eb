"""``free_port``, ``free_ports``: where servers of this machine can listen."""

import socket
from contextlib import suppress
from random import SystemRandom
from typing import Final

HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 32_000)
"""Below the ports that the kernel gives to connections, so that no connection takes one before a server does."""
_RANDOM: Final = SystemRandom()
"""Two processes must not choose the same ports, even if a test has seeded the other generator."""


def free_port() -> int:
    """Return a port of this machine that is free at the moment."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nothing listens on; others may take them meanwhile."""
    while True:
        first = _RANDOM.choice(_PORTS)
        with suppress(OSError):
            for port in range(first, first + count):
                socket.create_server((HOST, port)).close()
            return first
