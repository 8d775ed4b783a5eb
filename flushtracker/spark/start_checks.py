"""What a job checks before it starts Spark, which takes seconds: its folders can be written, and its brokers answer."""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flushtracker.config.storage_path import is_uri, local_folder
from flushtracker.config.transport import KafkaTransport, Transport
from flushtracker.errors import ConfigError
from flushtracker.kafka.first_contact import first_contact

logger = logging.getLogger(__name__)

_CLUSTER: Final = {"PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "YARN_CONF_DIR"}
"""The environment of a job under spark-submit, or of one whose Hadoop is configured."""


def check_start(transport: Transport | None, folders: Mapping[str, str]) -> None:
    """Check the local ones of the ``folders``, by the keys that name them; warn if no broker answers.

    A path without a scheme is in Spark's default file system, which may be another than the local one on a cluster.
    Only Spark knows, so such a path is only warned about there.

    Raises:
        ConfigError: a folder can neither be created nor written.
    """
    for key, path in folders.items():
        refusal = _refusal(key, path)
        if refusal is not None and (is_uri(path) or not _CLUSTER & os.environ.keys()):
            raise refusal
        if refusal is not None:
            logger.warning("%s; ignore this if %s is in Spark's default file system, which is not local", refusal, path)
    if isinstance(transport, KafkaTransport):
        security = transport.options.get("kafka.security.protocol", "PLAINTEXT")
        first_contact(transport.bootstrap_servers, security, transport.retry_timeout_ms / 1000)


def _refusal(key: str, path: str) -> ConfigError | None:
    """Why a local folder, or the nearest one above it that exists, cannot be written; ``None`` if it can."""
    local = local_folder(path)
    if local is None:
        return None
    folder = Path(local)
    try:
        while not folder.exists():
            folder = folder.parent
        # Permissions alone do not tell: root has them all, and the file system may be read-only. Readers ignore names
        # that begin with a dot.
        Path(tempfile.mkdtemp(prefix=".flushtracker-", dir=folder)).rmdir()
    except OSError as error:
        reason = error.strerror or str(error)
        at = "" if folder == Path(path).absolute() else f" at {folder}"
        return ConfigError(
            f"{key}: {path} cannot be written: {reason}{at}; name a folder that can be created and written"
        )
    return None
