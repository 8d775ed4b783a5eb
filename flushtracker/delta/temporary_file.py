"""Temporary files without names: nothing is left of one, however the process ends."""

import tempfile
from typing import IO

from flushtracker.delta.storage import storage_reason
from flushtracker.errors import SinkError


def temporary_file(buffering: int = -1) -> IO[bytes]:
    """A file that is deleted with this object; raises ``SinkError``."""
    try:
        return tempfile.TemporaryFile(buffering=buffering)
    except OSError as error:
        raise temporary_failed(error) from error


def temporary_failed(error: OSError) -> SinkError:
    # If no writable folder was found, the error itself names the ones that were tried.
    folder = "" if tempfile.tempdir is None else f" in {tempfile.tempdir}"
    return SinkError(f"temporary files{folder} cannot be used: {storage_reason(error)}")
