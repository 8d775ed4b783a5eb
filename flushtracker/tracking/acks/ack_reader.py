"""Reads an ack table: the last ack of a source, or all of its acks. Never creates or writes one; needs no Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.new_commits import NewCommits
from flushtracker.delta.storage import storage_reason, table_rows
from flushtracker.delta.table_version import require_known_version, require_ours
from flushtracker.errors import ConfigError, SinkError, listed
from flushtracker.tracking.acks.app_transactions import app_id_of, sources

_COLUMNS: Final = (
    "source",
    "batch_id",
    "ack_lsn",
    "last_seen_lsn",
    "pending_shapes",
    "blocking_shape",
    "blocking_since",
    "acked_at",
)


@dataclass(frozen=True, slots=True)
class Ack:
    """One advance of the ack. ``blocking_shape``, if any, keeps ``ack_lsn`` from reaching ``last_seen_lsn``.

    Order acks by ``ack_lsn``: ``batch_id`` restarts with each checkpoint.
    """

    batch_id: int
    ack_lsn: int
    last_seen_lsn: int
    pending_shapes: int
    blocking_shape: str | None
    blocking_since: datetime | None
    acked_at: datetime

    @property
    def lag_bytes(self) -> int:
        """The WAL that was received but is not acknowledged."""
        return self.last_seen_lsn - self.ack_lsn


@dataclass(frozen=True, slots=True)
class AckHistory:
    """All acks of one source, at least one, ordered by LSN."""

    source: str
    acks: tuple[Ack, ...]


class AckReader:
    """The ack table at ``uri``, which need not exist yet. For one thread at a time."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._uri = uri
        self._options = dict(storage_options or {})
        self._table: DeltaTable | None = None
        self._commits, self._versions = Commits(), AppVersions()
        self._last_rows: dict[str, Ack] = {}

    @property
    def exists(self) -> bool:
        """Whether the last read found a table."""
        return self._table is not None

    def last_ack(self, source: str) -> int | None:
        """The current last ack of a source, durable, or ``None``; raises ``SinkError``.

        Reads only the table's log. Syncs the log first, because the job that wrote the ack may not have synced it yet,
        or may have been killed before. After a power failure, the slot would be past it.
        """
        table = self._current_table()
        if table is None:
            return None
        try:
            self._commits.sync(table)
            # This may read the log again, even if the table is open.
            return self._versions.get(table, app_id_of(source))
        except (DeltaError, OSError) as error:
            self._table = None
            raise self._unreadable(error) from error

    def last_row(self, source: str) -> Ack | None:
        """The row of a source's last ack; raises ``SinkError``.

        Reads rows only if the table's log has a new ack, and only of the file that has it, by its statistics.
        """
        ack_lsn = self.last_ack(source)
        last_row = self._last_rows.get(source)
        if self._table is None or ack_lsn is None or (last_row is not None and ack_lsn <= last_row.ack_lsn):
            return last_row
        try:
            rows = table_rows(self._table, _COLUMNS, f"ack_lsn = {ack_lsn:d}").to_pylist()
        except TableNotFoundError:
            self._table = None
            return last_row
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error
        for row in rows:
            if row.pop("source") == source:
                self._last_rows[source] = _ack(row)
        return self._last_rows.get(source)

    def sources(self) -> list[str]:
        """The sources that have acks; raises ``SinkError``. This lists the table's log, so do not call it every
        second.
        """
        table = self._current_table()
        try:
            return [] if table is None else sorted(sources(table, self._options))
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error

    def last_rows(self) -> dict[str, Ack]:
        """The row of each source's last ack; cost and errors as :meth:`sources`."""
        found = {name: self.last_row(name) for name in self.sources()}
        return {name: row for name, row in found.items() if row is not None}

    def _current_table(self) -> DeltaTable | None:
        try:
            if self._table is None:
                self._table = _open_ack_table(self._uri, self._options)
                commits = NewCommits(self._table.table_uri, self._options)
                self._commits, self._versions = Commits(), AppVersions(commits)
            else:
                self._table.update_incremental()
                require_known_version(self._table, "ack table", self._uri)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError) as error:
            self._table = None
            raise self._unreadable(error) from error
        return self._table

    def _unreadable(self, error: Exception) -> SinkError:
        return SinkError(
            f"ack table {self._uri} cannot be read: {storage_reason(error)}; fix that, or name the storage of "
            "`flushtracker track`"
        )


def read_ack_history(
    uri: str, storage_options: Mapping[str, str] | None = None, source: str | None = None
) -> AckHistory:
    """The acks of ``source``, or of the only source in the table.

    Raises:
        SinkError: there is no ack table at ``uri``, it cannot be read, or it has no rows.
        ConfigError: the table has no such source, or it has several and ``source`` is ``None``.
    """
    table = _read(uri, storage_options)
    sources = sorted(table["source"].unique().to_pylist())
    if not sources:
        raise SinkError(
            f"ack table {uri} has no rows: nothing has been acknowledged yet; see the log of `flushtracker track`"
        )
    if source is None and len(sources) > 1:
        raise ConfigError(f"ack table {uri} has {_listed(sources)}; name one with --source")
    if source is not None and source not in sources:
        raise ConfigError(f"ack table {uri} has no source {source}, only {_listed(sources)}; name one with --source")
    chosen = sources[0] if source is None else source
    rows = [row for row in table.sort_by("ack_lsn").to_pylist() if row.pop("source") == chosen]
    return AckHistory(chosen, tuple(_ack(row) for row in rows))


def _read(uri: str, storage_options: Mapping[str, str] | None) -> pa.Table:
    try:
        return table_rows(_open_ack_table(uri, dict(storage_options or {})), _COLUMNS)
    except TableNotFoundError as error:
        raise SinkError(f"there is no ack table at {uri}; run `flushtracker track` with this configuration") from error
    except (DeltaError, OSError) as error:
        raise SinkError(
            f"ack table {uri} cannot be read: {storage_reason(error)}; fix that, or check storage"
        ) from error


def _open_ack_table(uri: str, options: dict[str, str]) -> DeltaTable:
    table = DeltaTable(uri, storage_options=options)
    require_ours(table, "ack table", uri, _COLUMNS, "name the storage of `flushtracker track`")
    return table


def _listed(sources: list[str]) -> str:
    return f"the source{'s' if len(sources) > 1 else ''} {listed(sources, most=5)}"


def _ack(row: dict[str, Any]) -> Ack:
    # Before the first commit only part of a transaction has been seen, so nothing above the ack is known.
    seen = row.pop("last_seen_lsn")
    return Ack(last_seen_lsn=row["ack_lsn"] if seen is None else max(row["ack_lsn"], seen), **row)
