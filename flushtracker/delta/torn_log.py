"""Repairs the end of a table's log after a power failure: versions and checkpoints whose content was not synced.

Nothing has relied on them (:mod:`flushtracker.delta.commits`), but a reader fails on them, or takes an empty commit for
one without rows. A process that writes to the table sets them aside when it opens it. Running processes leave none:
deltalake and Spark name files only when they are complete.
"""

import io
import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from flushtracker.delta.commits import ACTION_COUNT, LAST_CHECKPOINT

logger = logging.getLogger(__name__)

_COMMIT: Final = re.compile(r"\d{20}\.json")
_CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")
_PREFIX: Final = ".torn-"
"""Readers ignore names that begin with a dot."""


def set_torn_end_aside(log: Path) -> list[str]:
    """Rename the torn files at the end of the log in the folder ``log``; return their names. Raises ``OSError``.

    Only the newest versions and the newest checkpoint are renamed: anything else is damage that an operator must see.
    """
    if not log.is_dir():
        return []
    # Before the names, because another process writes the checkpoint before the hint.
    hint = _hint(log)
    names = sorted(path.name for path in log.iterdir())
    torn = list[str]()
    for name in reversed([name for name in names if _COMMIT.fullmatch(name)]):
        if _is_commit(_content(log / name)):
            break
        torn.append(name)
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    if checkpoints and not _is_parquet(_content(log / checkpoints[-1])):
        torn.append(checkpoints[-1])
    if LAST_CHECKPOINT in names:
        hinted = f"{hint:020}.checkpoint."
        if not any(name.startswith(hinted) for name in names if name not in torn):
            torn.append(LAST_CHECKPOINT)
    for name in torn:
        with suppress(FileNotFoundError):
            (log / name).rename(log / f"{_PREFIX}{name}")
    if torn:
        logger.warning("torn by a power failure, set aside: folder=%s files=%s", log, ", ".join(torn))
    return torn


def _content(path: Path) -> bytes:
    """The file's content; empty if another process has just set it aside."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _is_commit(content: bytes) -> bool:
    """Whether the commit is complete. One cut off after a line may lack files that replace those it removes."""
    try:
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        notes = [line["commitInfo"] for line in lines if "commitInfo" in line]
        return len(lines) > max((int(each.get(ACTION_COUNT, 0)) for each in notes), default=0)
    except (ValueError, TypeError, AttributeError):
        return False


def _is_parquet(content: bytes) -> bool:
    try:
        pq.read_table(io.BytesIO(content), use_threads=False)
    except (pa.ArrowException, OSError):
        return False
    return True


def _hint(log: Path) -> int:
    """The checkpoint version named by the log's hint file; -1 if it is torn."""
    try:
        return int(json.loads(_content(log / LAST_CHECKPOINT))["version"])
    except (ValueError, KeyError, TypeError):
        return -1
