"""``open_listener``: the socket on which a program serves HTTP."""

import socket

from flushtracker.config.status_config import StatusConfig
from flushtracker.errors import ConfigError


def open_listener(config: StatusConfig, key: str, *, backlog: int, stalled_s: float) -> socket.socket:
    """Listen at the address of ``config``, which is configured as ``key``.

    A client that reads nothing for ``stalled_s`` is disconnected.

    Raises:
        ConfigError: nothing can listen there.
    """
    try:
        found = socket.getaddrinfo(config.listen_host, config.listen_port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        both = config.listen_host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise ConfigError(
            f"{key} is {config.listen}, where nothing can be served: {reason}; "
            "stop what listens there, or name another address"
        ) from error
    # Accepted connections inherit both options. asyncio sets the first only on sockets that name the protocol. Without
    # it, the kernel holds back the end of an answer until its beginning is acknowledged, mostly for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_s * 1_000))
    return listener
