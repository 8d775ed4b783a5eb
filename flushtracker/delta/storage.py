"""Shared code for Delta tables: SQL queries, storage errors on one line, and retries.

Rows are read by the query engine of the deltalake package, not through a pyarrow dataset. A dataset calls back into
Python from its own threads, and a program that exits at that moment aborts. On a busy machine, 12 of 200 programs that
read three rows and exited aborted; with the query engine none did.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileInfo, FileSelector, FileType

from flushtracker.config.storage_path import local_folder
from flushtracker.errors import one_line

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_NAME: Final = "rows"

RETRIES: Final = 2
BRIEF_RETRIES: Final = 6
PAUSE_S: Final = 1.0
_RETRIED_S: Final = 60.0
"""Longer than a request's timeout, and shorter than the client's own retries while nothing answers."""

_BRIEF: Final = {"timeout": "2s", "max_retries": "0"}
"""Options of a store's client, whose defaults are 30 s for a request and 180 s with its retries."""

_SMALL_BATCHES: Final = {"datafusion.execution.batch_size": 1024, "datafusion.execution.target_partitions": 1}
"""Rows may be large, and each partition holds a batch."""


class StoreRetry:
    """Retries of a failed request to the store of ``uri``; on a disk there are none.

    The store's client retries most requests itself, but not a conditional write whose connection is reset or times out,
    nor an interrupted listing.
    """

    def __init__(self, uri: str, retries: int = RETRIES) -> None:
        self._left = retries if local_folder(uri) is None else 0
        self._until_s = time.monotonic() + _RETRIED_S

    def pause(self) -> bool:
        """Wait for the next retry; false if there is none."""
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._until_s:
            return False
        time.sleep(PAUSE_S)
        return True


def read_with_retry(uri: str, request: Callable[[], _T], retries: int = RETRIES) -> _T:
    """Call ``request``, which may be repeated, at the store of ``uri``, with retries.

    Raises ``DeltaError`` or ``OSError``.
    """
    retry = StoreRetry(uri, retries)
    while True:
        try:
            return request()
        except (DeltaError, OSError) as error:  # noqa: PERF203  each round is a request
            if isinstance(error, (TableNotFoundError, FileNotFoundError)) or not retry.pause():
                raise


def write_with_retry(
    uri: str,
    write: Callable[[], _T],
    find: Callable[[], _T | None],
    is_repeatable: Callable[[Exception], bool] = lambda _: True,
) -> _T:
    """The result of ``write``, or, after an error, that of ``find`` for a write that took effect nevertheless.

    Otherwise ``write`` is retried if its error ``is_repeatable``. ``find`` may fail, too. Raises ``DeltaError`` or
    ``OSError``.
    """
    retry = StoreRetry(uri)
    while True:
        try:
            return write()
        except (DeltaError, OSError) as error:
            reason = storage_reason(error)
            with suppress(DeltaError, OSError):
                if (found := find()) is not None:
                    logger.info("commit found in spite of an error uri=%s reason=%s", uri, reason)
                    return found
            if not is_repeatable(error) or not retry.pause():
                raise
        logger.warning("commit tried again after an error uri=%s reason=%s", uri, reason)


def refresh(table: DeltaTable) -> None:
    """Open the table at its last version; raises ``DeltaError`` or ``OSError``."""
    read_with_retry(table.table_uri, table.update_incremental)


class StoreFiles(DeltaStorageHandler):
    """The files of a table, with the sizes of those that are known; while it waits for the store, other threads run.

    deltalake holds the GIL for a request that asks for the size of a file to open, that lists, or that deletes. So an
    unknown size is asked for before, which releases it, and the others are given up after 2 s, and tried again. For
    the request that begins a new file there is :func:`~flushtracker.delta.new_file.new_file`.
    """

    def __init__(
        self, table_uri: str, options: Mapping[str, str] | None, sizes: Mapping[str, int] | None = None
    ) -> None:
        self.uri, self._options, self._sizes = table_uri, dict(options or {}), dict(sizes or {})
        super().__init__(table_uri, self._options, self._sizes)
        self._brief = brief_files(table_uri, options)
        self._given_up_after = dict[int, DeltaStorageHandler]()

    def given_up_after(self, request_s: int) -> DeltaStorageHandler:
        """The same files, by a client that gives up each request after this time, and tries none again."""
        if request_s not in self._given_up_after:
            self._given_up_after[request_s] = brief_files(self.uri, self._options, f"{request_s}s")
        return self._given_up_after[request_s]

    def open_input_file(self, path: str) -> pa.PythonFile:
        if path in self._sizes:
            return super().open_input_file(path)
        (info,) = self.get_file_info([path])
        if info.type == FileType.NotFound:
            raise FileNotFoundError(path)
        return DeltaStorageHandler(self.uri, self._options, {path: info.size}).open_input_file(path)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        return read_with_retry(self.uri, lambda: self._brief.get_file_info_selector(selector), BRIEF_RETRIES)

    def delete_file(self, path: str) -> None:
        read_with_retry(self.uri, lambda: self._brief.delete_file(path), BRIEF_RETRIES)


def brief_files(
    table_uri: str,
    storage_options: Mapping[str, str] | None,
    timeout: str = _BRIEF["timeout"],
    sizes: Mapping[str, int] | None = None,
) -> DeltaStorageHandler:
    """The files of a table, for one who has another way if a request fails: none takes longer than ``timeout``.

    deltalake holds the GIL while it opens a file, so until the store answers, no other thread of the process runs.
    """
    options = {name: value for name, value in (storage_options or {}).items() if name.lower() not in _BRIEF}
    return DeltaStorageHandler(table_uri, options | _BRIEF | {"timeout": timeout}, dict(sizes or {}))


def table_rows(table: DeltaTable, selected: Iterable[str], condition: str = "TRUE") -> pa.Table:
    """The ``selected`` expressions for the rows that satisfy ``condition``, unordered.

    Both are SQL written by this program, never a user's values. Raises ``DeltaError`` or ``OSError``.
    """
    return query_rows(table, f"SELECT {', '.join(selected)} FROM {_NAME} WHERE {condition}")  # noqa: S608  see above


def query_rows(table: DeltaTable, query: str) -> pa.Table:
    """The result of ``query``, SQL over the table ``rows`` in which every user's value is a :func:`literal`.

    Raises ``DeltaError`` or ``OSError``.
    """
    rows = QueryBuilder().register(_NAME, table).execute(query)
    try:
        found = pa.table(rows)
    except pa.ArrowException as error:
        # Arrow's interface turns every storage error into an error of its own.
        raise OSError(str(error)) from error
    # Arrow's own functions do not accept string views yet.
    fields = [field.with_type(pa.string()) if field.type == pa.string_view() else field for field in found.schema]
    return found.cast(pa.schema(fields))


def query_batches(table: DeltaTable, query: str) -> Iterator[pa.Table]:
    """The result of a ``query`` as for :func:`query_rows`, a few rows at a time; texts have 64-bit offsets.

    Raises ``DeltaError`` or ``OSError``.
    """
    engine = QueryBuilder().register(_NAME, table)
    for setting, value in _SMALL_BATCHES.items():
        engine.execute(f"SET {setting} = {value}")
    try:
        for batch in pa.RecordBatchReader.from_stream(engine.execute(query)):
            found = pa.Table.from_batches([batch])
            yield found.cast(_wide(found.schema))
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def _wide(schema: pa.Schema) -> pa.Schema:
    texts = (pa.string(), pa.string_view())
    return pa.schema([field.with_type(pa.large_string()) if field.type in texts else field for field in schema])


def literal(text: str) -> str:
    """A text as an SQL literal.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def actions_of(files: DeltaStorageHandler, version: int) -> list[Mapping[str, Any]]:
    """The actions of a version, as Delta's protocol has them, which deltalake does not expose.

    Raises:
        OSError: it cannot be read in time, perhaps because a checkpoint has replaced it.
        ValueError: it is malformed.
    """
    text = bytes(files.open_input_file(f"_delta_log/{version:020}.json").read())
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def commit_notes(table: DeltaTable, after: int = -1) -> Iterator[Mapping[str, Any]]:
    """The notes of each version after ``after`` up to the open one, the newest first, as far as the log has them.

    deltalake's ``history()`` holds the GIL until the store answers. Raises ``OSError``.
    """
    files = brief_files(table.table_uri, table._storage_options)
    for version in range(table.version(), after, -1):
        try:
            actions = read_with_retry(table.table_uri, partial(actions_of, files, version), BRIEF_RETRIES)
        except FileNotFoundError:
            return
        except ValueError as error:
            raise OSError(f"version {version} of {table.table_uri} is malformed") from error
        yield next((action["commitInfo"] for action in actions if "commitInfo" in action), {}) | {"version": version}


def committer(table: DeltaTable, app_id: str) -> str:
    """The process that made the last claim, in parentheses; empty if its name has expired from the log, or the store
    does not answer.
    """
    with suppress(OSError):
        return next((f" ({notes[app_id]})" for notes in commit_notes(table) if app_id in notes), "")
    return ""


def storage_reason(error: Exception) -> str:
    """The storage's error message, on one line of bounded length, without passwords in URLs."""
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return one_line(re.sub(r"//[^/@\s]+@", "//", uncoloured))
