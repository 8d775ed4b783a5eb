"""``config_text``: a first configuration, of the four lines that suffice, as ``flushtracker init`` writes it."""

from typing import Final

from flushtracker.config.yaml_text import yaml_text

_CONFIG: Final = """\
# Written by `flushtracker init`. These four lines are enough: `flushtracker config` prints what is in force, and
# docs/configuration.md describes every key. A relative path starts at the working directory.
postgres: "{postgres}"
kafka:{kafka}
storage: {storage}
shapes: {shapes}
"""
_ONE_BROKER: Final = """
  bootstrap_servers: {servers}
  replication_factor: 1   # a broker on this machine; leave this out for three or more"""
_LOOPBACK: Final = ("localhost:", "127.0.0.1:", "[::1]:")


def is_local_broker(kafka: str) -> bool:
    """Whether the bootstrap servers are one broker, on this machine."""
    return kafka.startswith(_LOOPBACK) and "," not in kafka


def config_text(postgres: str, kafka: str, storage: str, shapes: str) -> str:
    """The configuration of all programs; ``postgres`` is what ``connection_uri`` returns."""
    servers = yaml_text(kafka)
    return _CONFIG.format(
        postgres=postgres,
        kafka=_ONE_BROKER.format(servers=servers) if is_local_broker(kafka) else f" {servers}",
        storage=yaml_text(storage),
        shapes=yaml_text(shapes),
    )
