"""What a job checks before it starts Spark, which takes seconds: its folders can be written, and its brokers answer."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flushtracker.config.storage_path import place_of
from flushtracker.config.transport import KafkaTransport, Transport
from flushtracker.errors import ConfigError
from flushtracker.kafka.first_contact import first_contact

_LOCAL: Final = "file"


def check_start(transport: Transport | None, folders: Mapping[str, str]) -> None:
    """Check the local ones of the ``folders``, by the keys that name them; warn if no broker answers.

    Raises:
        ConfigError: a folder can neither be created nor written.
    """
    for key, path in folders.items():
        _require_writable(key, path)
    if isinstance(transport, KafkaTransport):
        security = transport.options.get("kafka.security.protocol", "PLAINTEXT")
        first_contact(transport.bootstrap_servers, security, transport.retry_timeout_ms / 1000)


def _require_writable(key: str, path: str) -> None:
    """Raise ``ConfigError`` if the folder, or the nearest one above it that exists, cannot be written."""
    storage, _, *names = place_of(path)
    if storage != _LOCAL:
        return
    folder = Path("/", *names)
    try:
        while not folder.exists():
            folder = folder.parent
        # Permissions alone do not tell: root has them all, and the file system may be read-only. Readers ignore names
        # that begin with a dot.
        Path(tempfile.mkdtemp(prefix=".flushtracker-", dir=folder)).rmdir()
    except OSError as error:
        reason = error.strerror or str(error)
        at = "" if folder == Path(path).absolute() else f" at {folder}"
        raise ConfigError(
            f"{key}: {path} cannot be written: {reason}{at}; name a folder that can be created and written"
        ) from error
