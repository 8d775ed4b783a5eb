"""Features of Delta that others have enabled in our tables: which are survived, and which are refused by name."""

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable, TableFeatures

from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.shape_log_rows import SOURCE

_OPEN: Final[Mapping[str, Callable[[str], object]]] = {
    "ack table": AckTable,
    "shape log": create_shape_log,
    "registry table": lambda uri: RegistryTable(uri, create=True),
    "dead-letter table": lambda uri: DeadLetterTable(uri).require_usable(),
}
_REFUSED: Final = {
    "rowTracking": TableFeatures.RowTracking,
    # Clustering needs it, and the package that makes these tables cannot enable clustering itself.
    "domainMetadata": TableFeatures.DomainMetadata,
    "deletionVectors": TableFeatures.DeletionVectors,
    "columnMapping": TableFeatures.ColumnMapping,
}
_SURVIVED: Final = {
    "appendOnly": TableFeatures.AppendOnly,
    "changeDataFeed": TableFeatures.ChangeDataFeed,
    "timestampNtz": TableFeatures.TimestampWithoutTimezone,
    "v2Checkpoint": TableFeatures.V2Checkpoint,
}


def _enable(uri: str, feature: TableFeatures) -> None:
    DeltaTable(uri).alter.add_feature(feature, allow_protocol_versions_increase=True)


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, datetime.now(timezone.utc))


@pytest.mark.parametrize("name", _REFUSED)
@pytest.mark.parametrize("kind", _OPEN)
def test_feature_that_cannot_be_written_is_refused_by_its_name(tmp_path: Path, kind: str, name: str) -> None:
    """A driver would otherwise say that another one has fenced it, and no start would help."""
    uri = str(tmp_path / "table")
    _OPEN[kind](uri)
    if kind == "dead-letter table":
        DeadLetterTable(uri).append([], "query", 1)
    _enable(uri, _REFUSED[name])
    with pytest.raises(SinkError) as caught:
        _OPEN[kind](uri)
    assert str(caught.value).startswith(
        f"{kind} {uri} has the table features {name}, with which this program does not write it, and which another one "
        "has enabled: go back to the last version of these jobs with Spark (SET "
    )


@pytest.mark.parametrize("name", _REFUSED)
def test_feature_that_is_enabled_while_a_job_runs_ends_it_and_loses_nothing(tmp_path: Path, name: str) -> None:
    """The next append and the next start have the name. Readers go on."""
    uri = str(tmp_path / "acks")
    acks = AckTable(uri)
    acks.fence_others()
    acks.append(_ack(1))
    _enable(uri, _REFUSED[name])
    with pytest.raises(SinkError, match=name):
        acks.append(_ack(2))
    with pytest.raises(SinkError, match=name):
        AckTable(uri)
    assert AckReader(uri).last_ack(SOURCE) == 1


def test_no_version_is_named_if_the_log_has_none_of_ours(tmp_path: Path) -> None:
    """Spark would refuse to restore one that is gone."""
    uri = str(tmp_path / "acks")
    AckTable(uri)
    _enable(uri, TableFeatures.RowTracking)
    DeltaTable(uri).create_checkpoint()
    Path(uri, "_delta_log", f"{0:020}.json").unlink()
    with pytest.raises(SinkError, match="no longer has a version of these jobs that Spark could restore") as caught:
        AckTable(uri)
    assert "VERSION AS OF" not in str(caught.value)


@pytest.mark.parametrize("name", _SURVIVED)
def test_feature_that_changes_nothing_is_survived(tmp_path: Path, name: str) -> None:
    """Before a start, and while a job runs, for which it is a commit as any other."""
    uri, log = str(tmp_path / "acks"), str(tmp_path / "log")
    acks = AckTable(uri)
    acks.fence_others()
    acks.append(_ack(1))
    _enable(uri, _SURVIVED[name])
    acks = AckTable(uri)
    acks.fence_others()
    assert acks.append(_ack(2)) == 1
    acks._owned.compact()
    assert AckReader(uri).last_ack(SOURCE) == 2
    create_shape_log(log)
    _enable(log, _SURVIVED[name])
    claim = LogClaim(create_shape_log(log))
    claim.take()
    claim.append([], claim.version_of(0))
