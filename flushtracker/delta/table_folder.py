"""``TableFolder``: the folder of one of our tables. A table is created only in an empty folder.

Upkeep deletes old unreferenced files, including those that a killed process never committed. deltalake's full vacuum
would also delete any other old file; here only files with the names of our data files are deleted.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from pyarrow.fs import FileSelector

from flushtracker.config.storage_path import local_folder
from flushtracker.delta.commits import ACTION_COUNT, LOG_FOLDER, Commits
from flushtracker.delta.data_file import now_ms
from flushtracker.delta.new_file import new_file
from flushtracker.delta.storage import StoreFiles, read_with_retry, write_with_retry
from flushtracker.delta.table_features import require_writable
from flushtracker.delta.torn_log import set_torn_end_aside
from flushtracker.disk_sync import make_folder
from flushtracker.errors import SinkError, listed, printable

logger = logging.getLogger(__name__)

_OURS: Final = re.compile(r"(?:part|run)-[\w.-]+\.parquet")
"""Data files, including those of a shape log's runs."""

_INCOMPLETE: Final = re.compile(r"(?:part|run)-[\w.-]+\.parquet#\d+")
"""deltalake's names for data files on a disk while they are being written."""
_INCOMPLETE_MS: Final = 86_400_000
"""Much longer than writing a file takes."""

_TRIED: Final = ".flushtracker-tried"

_CREATION_ACTIONS: Final = "2"
"""The protocol and the metadata."""


class TableFolder:
    """The folder at ``uri`` of a table, which messages call ``kind``."""

    def __init__(self, kind: str, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.kind, self.uri = kind, uri
        self._options = dict(storage_options or {})
        self._logged: set[str] = set()

    def open_or_create(self, schema: pa.Schema, configuration: Mapping[str, str | None]) -> DeltaTable:
        """Open the table to write to it, or create it in an empty folder.

        Raises:
            SinkError: there is something else than a table.
            DeltaError, OSError: the storage fails.
        """
        local = local_folder(self.uri)
        log = None if local is None else Path(local, LOG_FOLDER)
        if log is not None:
            set_torn_end_aside(log)
        if table := self.table():
            require_writable(table, self.kind, self.uri)
            return table
        foreign = foreign_names(self.names())
        # Another process may have created the table since the first check, and written to it.
        if foreign and self.table() is None:
            raise SinkError(not_empty(self.kind, self.uri, foreign))
        if log is not None:
            make_folder(log)
        table = self._created(schema, configuration)
        Commits().sync(table)
        return table

    def _created(self, schema: pa.Schema, configuration: Mapping[str, str | None]) -> DeltaTable:
        def create() -> DeltaTable:
            return DeltaTable.create(
                self.uri,
                Schema.from_arrow(schema),
                mode="ignore",
                configuration=configuration,
                storage_options=self._options,
                # deltalake would add its own first commit after another process's, and the other's next commit would
                # conflict.
                commit_properties=CommitProperties({ACTION_COUNT: _CREATION_ACTIONS}, max_commit_retries=0),
                # Our property is not one of Delta's.
                raise_if_key_not_exists=False,
            )

        # Another process may have been first; then open its table.
        return write_with_retry(self.uri, create, self.table)

    def delete_old_files(self, table: DeltaTable) -> int:
        """Delete unreferenced data files past the retention; return their number.

        Other files stay, and are logged once. Raises ``DeltaError`` or ``OSError``.
        """
        unused = set(table.vacuum(dry_run=True, full=True))
        ours = {path for path in unused if _OURS.fullmatch(path)}
        foreign = unused - ours
        self._log(sorted(foreign - self._logged))
        self._logged = foreign
        # deltalake's vacuum would delete the others, too, and its commits bypass ours. This takes one request per file.
        storage = StoreFiles(table.table_uri, self._options)
        for path in ours:
            # Another process may delete it at the same time.
            with suppress(FileNotFoundError):
                storage.delete_file(path)
        incomplete = self._incomplete_files()
        for file in incomplete:
            file.unlink(missing_ok=True)
        return len(ours) + len(incomplete)

    def _incomplete_files(self) -> list[Path]:
        """On a disk, old incomplete files of killed processes; storage listings do not show these names."""
        local = local_folder(self.uri)
        files = [] if local is None else [each for each in Path(local).iterdir() if _INCOMPLETE.fullmatch(each.name)]
        return [file for file in files if _is_older(file, _INCOMPLETE_MS)]

    def _log(self, foreign: list[str]) -> None:
        if not foreign:
            return
        logger.warning(
            "the folder of the %s has files that are not the table's; they are kept, move them elsewhere uri=%s "
            "count=%d files=%s",
            self.kind,
            self.uri,
            len(foreign),
            printable(listed(foreign)),
        )

    def table(self) -> DeltaTable | None:
        """The open table, if there is one; raises ``DeltaError`` or ``OSError``."""
        # is_deltatable() holds the GIL until the storage answers.
        try:
            return read_with_retry(self.uri, lambda: DeltaTable(self.uri, storage_options=self._options))
        except TableNotFoundError:
            return None

    def try_write(self) -> None:
        """Write a file and delete it, and the folder if it did not exist; raises ``DeltaError`` or ``OSError``."""
        local = local_folder(self.uri)
        folder = None if local is None or Path(local).exists() else Path(local)
        if folder is not None:
            folder.mkdir(parents=True)
        storage = StoreFiles(self.uri, self._options)
        with new_file(storage, _TRIED) as stream:
            stream.write(b"-")
        storage.delete_file(_TRIED)
        if folder is not None:
            # Another process may have written into it meanwhile.
            with suppress(OSError):
                folder.rmdir()

    def names(self) -> list[str]:
        """The names in the folder; raises ``DeltaError`` or ``OSError``."""
        try:
            storage = StoreFiles(self.uri, self._options)
        except TableNotFoundError:  # a folder on this machine that does not exist
            return []
        selector = FileSelector("", allow_not_found=True, recursive=False)
        return [info.path for info in storage.get_file_info_selector(selector)]


def _is_older(file: Path, age_ms: int) -> bool:
    # Another process may complete or delete it at the same time.
    with suppress(FileNotFoundError):
        return file.is_file() and file.stat().st_mtime * 1000 < now_ms() - age_ms
    return False


def foreign_names(names: Iterable[str]) -> list[str]:
    """The names in a folder without a table that prevent the creation of a table there.

    Names that begin with a dot are not data: file systems and Spark use them. Storages use an empty name for the folder
    itself.

    >>> foreign_names(["report.csv", ".report.csv.crc", "_delta_log", "lost+found", ""])
    ['report.csv']
    """
    return sorted(name for name in names if name and name[0] != "." and name not in {LOG_FOLDER, "lost+found"})


def not_empty(kind: str, uri: str, found: list[str]) -> str:
    """The message that refuses to create a table beside other files."""
    return f"{kind} {uri} cannot be created: the folder already has {listed(found)}; name another storage"
