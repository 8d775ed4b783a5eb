"""App transactions are asked for once, and then followed: on an object store, each commit read is a request."""

import json
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Final

import pytest
from deltalake import DeltaTable, Transaction

from flushtracker.delta.app_versions import AppVersions
from flushtracker.delta.commits import Commits
from flushtracker.delta.new_commits import NewCommits
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.shape_log_rows import SOURCE

_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The app ids for which the commits since the last checkpoint have been read."""
    found, read = list[str](), DeltaTable.transaction_version

    def counted(table: DeltaTable, app_id: str) -> int | None:
        found.append(app_id)
        return read(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    return found


def _ack(lsn: int, source: str = SOURCE) -> AckRow:
    return AckRow(source, lsn, lsn, lsn, 0, None, None, _NOW)


def test_look_at_an_ack_reads_nothing_again_until_there_is_a_commit(tmp_path: Path, reads: list[str]) -> None:
    """Capture looks every second, and sees a new ack at once."""
    acks, reader = AckTable(str(tmp_path)), AckReader(str(tmp_path))
    acks.fence_others()
    acks.append(_ack(1))
    assert reader.last_ack(SOURCE) == 1
    reads.clear()
    assert [reader.last_ack(SOURCE) for _ in range(5)] == [1] * 5
    assert reads == []
    acks.append(_ack(2), _ack(7, "other"))
    reads.clear()
    assert reader.last_ack(SOURCE) == 2
    assert reads == []
    assert reader.last_ack("other") == 7


@pytest.mark.parametrize("version", ["x", True, None])
def test_an_ack_that_is_no_integer_is_unreadable(tmp_path: Path, version: object) -> None:
    """Also for a reader that has the table open: what only the next one refuses would end the thread that confirms."""
    acks, reader = AckTable(str(tmp_path)), AckReader(str(tmp_path))
    acks.fence_others()
    acks.append(_ack(1))
    assert reader.last_ack(SOURCE) == 1
    log = tmp_path / "_delta_log"
    following = len([*log.glob("*.json")])
    (log / f"{following:020}.json").write_text(json.dumps({"txn": {"appId": SOURCE, "version": version}}) + "\n")
    with pytest.raises(SinkError, match="cannot be read"):
        reader.last_ack(SOURCE)


@pytest.mark.parametrize("versions", [1, 4])
def test_followed_versions_are_those_of_a_question(
    tmp_path: Path, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody has seen the versions in between, or the commits are gone that a checkpoint has replaced."""
    monkeypatch.setattr("flushtracker.delta.app_versions._MOST_VERSIONS", 6)
    table = create_shape_log(str(tmp_path))
    followed, ids = AppVersions(NewCommits(table.table_uri)), ("a", "b", "never")
    rng, at = Random(versions), dict.fromkeys(ids, 0)  # noqa: S311  reproducible
    for _ in range(40):
        chosen = rng.sample(["a", "b", "other"], 2)
        for each in chosen:
            at[each] = at.get(each, 0) + rng.randint(0, 3)
        writer = DeltaTable(str(tmp_path))
        Commits().commit(writer, [], [Transaction(each, at[each]) for each in chosen])
        if rng.random() < 0.1:
            writer.create_checkpoint()
            for file in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
                file.unlink()
        if rng.random() < 1 / versions:
            table.update_incremental()
            asked = DeltaTable(str(tmp_path))
            assert [followed.get(table, each) for each in ids] == [asked.transaction_version(each) for each in ids]


def test_driver_knows_what_it_has_appended_until_another_one_commits(tmp_path: Path, reads: list[str]) -> None:
    """Its appends read nothing; what another driver has committed is seen before the next one."""
    acks = AckTable(str(tmp_path))
    acks.fence_others()
    acks.append(_ack(1))
    reads.clear()
    assert [acks.append(_ack(lsn)) for lsn in (2, 3, 3, 2, 4)] == [1, 1, 0, 0, 1]
    assert reads == []
    assert acks.last_ack(SOURCE) == AckReader(str(tmp_path)).last_ack(SOURCE) == 4
    AckTable(str(tmp_path)).fence_others()
    with pytest.raises(SinkError, match="this driver has been fenced"):
        acks.append(_ack(5))


def test_append_to_the_log_reads_its_claim_once(tmp_path: Path, reads: list[str]) -> None:
    """For the commit that it has made, but not again for each check before it."""
    claim = LogClaim(create_shape_log(str(tmp_path)))
    claim.take()
    claim.append([], claim.version_of(0))
    reads.clear()
    claim.append([], claim.version_of(1))
    assert len(reads) == 1
