"""Facts about processes that a test did not start itself."""

from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether this process runs no more; where nothing reaps orphans, as in a container, it stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
