"""The writers' job on files: what it writes, what it says, and what is left after a kill at each step."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.job_config import StateConfig
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import DecodeError, SinkError, StateError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.write.driver import WriteDriver
from flushtracker.shape_log.write.rows import to_write_rows
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.killed_writer import POINTS
from tests.support.processes import run_to_end
from tests.support.seeds import every, in_turn
from tests.support.shape_transactions import SOURCE, Transactions
from tests.support.write_folder import WriteFolder
from tests.support.write_load import FILES, Load


def _require_durable(job: WriteFolder, load: Load) -> None:
    """Nothing is confirmed that the log does not have."""
    for file in job.notified():
        for shape_id, offset in file.items():
            assert load.shapes[shape_id].confirmed_rows(offset) <= {*job.log_rows(shape_id)}


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[WriteFolder, Load]:
    """The load, written by a job that was never killed."""
    job, load = WriteFolder(tmp_path_factory.mktemp("undisturbed")), Load()
    load.write(job)
    job.run(spark)
    return job, load


def test_each_change_is_in_the_log_once_and_each_shape_is_notified(undisturbed: tuple[WriteFolder, Load]) -> None:
    """Transactions that several batches write are whole in the end; a notification comes after its rows."""
    job, load = undisturbed
    load.check(job)
    assert len(job.notified()) == FILES


def test_killed_writers_continue_without_a_duplicate(
    spark: SparkSession, undisturbed: tuple[WriteFolder, Load], tmp_path: Path
) -> None:
    """One job is killed at every kill point: what was said is durable, and what is left is written once.

    Each step is one that the model of the shape log allows.
    """
    job, load = undisturbed[0].twin(tmp_path / "job"), undisturbed[1]
    # Each start reruns the batch in which the one before was killed.
    for (point, passes), said in zip(zip(POINTS, [0, 1, 0, 0], strict=True), [0, 1, 2, 4], strict=True):
        command = [sys.executable, "-m", "tests.support.killed_writer", point, str(passes)]
        done = run_to_end([*command, "--config", str(job.config_file())], start_new_session=True, timeout=300)
        assert done.returncode == -9, done.stderr
        _require_durable(job, load)
        job.trace()
        assert len(job.notified()) == said
    job.run(spark)
    load.check(job)
    assert job.trace().counts["claims"] == len(POINTS) + 1
    # What the committed batch holds is said again at each start before anything is read.
    first, *later = job.notified()
    for again in (later[0], later[1], later[3]):
        assert all(offset <= again[shape_id] for shape_id, offset in first.items())


@pytest.mark.parametrize("backup", in_turn([False, True]))
def test_lost_or_old_checkpoint_costs_nothing_but_a_look_at_the_log(
    spark: SparkSession,
    undisturbed: tuple[WriteFolder, Load],
    tmp_path: Path,
    backup: bool,  # noqa: FBT001  a parameter
) -> None:
    """All changes are read again, none is written twice, and all are notified again."""
    job, load = WriteFolder(tmp_path / "job"), undisturbed[1]
    job.write(load.files[0])
    job.run(spark)
    shutil.copytree(job.root / "checkpoint", tmp_path / "backup")
    for file in load.files[1:]:
        job.write(file)
    job.run(spark)
    shutil.rmtree(job.root / "checkpoint")
    if backup:
        (tmp_path / "backup").rename(job.root / "checkpoint")
    shutil.rmtree(job.root / "flushes")
    job.run(spark)
    load.check(job)
    # It knows now where the logs end, also after another start.
    job.run(spark)
    load.check(job)


@every(2, 0)
def test_log_restored_from_a_backup_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """What the writer has notified is missing in it; going on would leave a hole."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    job.write(load.files[0])
    job.run(spark)
    shutil.copytree(job.root / "log", tmp_path / "backup")
    job.write(load.files[1])
    job.run(spark)
    shutil.rmtree(job.root / "log")
    (tmp_path / "backup").rename(job.root / "log")
    with pytest.raises(SinkError, match="is older than the checkpoint"):
        job.run(spark)


@every(2, 1)
def test_log_restored_to_an_earlier_append_of_the_same_claim_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A permanent job claims the log once; a nightly backup has the claim, and lacks the day's rows."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    load.write(job)
    job.run(spark)
    for file in sorted((job.root / "log" / "_delta_log").glob("*.json"))[-1:]:
        assert '"add"' in file.read_text()
        file.rename(tmp_path / file.name)
        for sums in file.parent.glob(f".{file.stem}*"):
            sums.unlink()
        file.with_suffix(".crc").unlink(missing_ok=True)
    said = job.notified()
    with pytest.raises(SinkError, match="is older than the checkpoint"):
        job.run(spark)
    assert job.notified() == said


@every(2, 0)
def test_second_writer_fences_the_first_before_it_writes_or_says_anything(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims the log while the first is in the middle of a batch."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    load.write(job)
    append = WriteDriver.append

    def claim_first(driver: WriteDriver, *arguments: Any) -> None:
        LogClaim(create_shape_log(str(job.root / "log"))).take()
        append(driver, *arguments)

    with monkeypatch.context() as second:
        second.setattr(WriteDriver, "append", claim_first)
        with pytest.raises(SinkError, match=r"this writer has been fenced: another writer \(process \d+ on "):
            job.run(spark)
    assert job.log_rows("a") == []
    assert job.notified() == []
    job.run(spark)
    load.check(job)


@every(2, 1)
def test_replaced_writer_appends_no_entry(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one, which starts in the middle of its batch, may have appended a later one about the same."""
    job, announce = WriteFolder(tmp_path / "job"), WriteDriver._announce
    entry = ShapeEntry(SOURCE, ShapeDefinition("a", ("public", "t"), snapshot=False), 7, LogOffset(9, 0))
    job.write([], [entry])

    def start_another(driver: WriteDriver, *arguments: Any) -> None:
        RegistryTable(str(job.root / "log_shapes")).fence_others()
        announce(driver, *arguments)

    with monkeypatch.context() as second:
        second.setattr(WriteDriver, "_announce", start_another)
        with pytest.raises(SinkError, match=r"another writer \(process \d+ on .*\) writes to registry table"):
            job.run(spark)
    registry = RegistryTable(str(job.root / "log_shapes"))
    assert registry.entries().shape(SOURCE, "a") is None
    job.run(spark)
    assert registry.entries().shape(SOURCE, "a") == entry


def test_unreadable_change_stops_the_job_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of the batch is written; once the file is corrected, the job goes on."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    job.write([*load.files[0], '{"v": 1, "source": "1/1/shapes", "shape_id": "a"}'])
    for file in load.files[1:]:
        job.write(file)
    with pytest.raises(DecodeError, match=r"shape_changes/000000000000.jsonl: .* cannot be read: .*field `xid`"):
        job.run(spark)
    assert job.log_rows("b") == []
    path = job.root / "shape_changes" / "000000000000.jsonl"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines()[:-1]))
    job.run(spark)
    load.check(job)


def test_gap_stops_one_shape_until_capture_sends_it_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on; the gap is reported once, with what to do."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    for number, file in enumerate(load.files):
        job.write([event for event in file if event.shape_id != "b" or number != 1])
    job.run(spark)
    stream = load.shapes["b"]
    assert job.log_rows("b") == stream.expected_rows()[: len(job.log_rows("b"))]
    assert "b" not in job.notified()[-1]
    assert job.notified()[-1]["a"] == LogOffset.last_of(max(load.shapes["a"].items))
    warnings = [record.getMessage() for record in caplog.records if "gap in shape_changes" in record.getMessage()]
    assert len(warnings) == 1
    assert f"source={SOURCE} shape=b: an event up to " in warnings[0]
    assert "until capture is restarted" in warnings[0]
    stream.restart()
    job.write(stream.events(list(stream.items)))
    job.run(spark)
    load.check(job)
    assert "gap closed" not in caplog.text  # Another process closes it.


def test_removed_shape_takes_nothing_more_and_its_entry_is_kept_for_readers(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Late changes are ignored, and the registry table says why it ended."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    entry = ShapeEntry(SOURCE, ShapeDefinition("b", ("public", "t")), 1, LogOffset(900, 0))
    job.write(load.files[0], [entry])
    job.write([], [replace(entry, removed_at=LogOffset(5000, 0), ended_because="its column was dropped")])
    job.run(spark)
    before = job.log_rows("b")
    for file in load.files[1:]:
        job.write(file)
    job.run(spark)
    assert before
    assert job.log_rows("b") == before
    assert "b" not in job.notified()[-1]
    assert job.log_rows("a") == load.shapes["a"].expected_rows()


def test_a_resynced_shape_is_marked_before_its_first_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events may be read before its entry. After a failure between mark and rows, each is there once."""
    job, stream = WriteFolder(tmp_path / "job"), Transactions("b")
    entry = ShapeEntry(SOURCE, ShapeDefinition("b", ("public", "t")), 1, LogOffset(900, 0))
    stream.grow(2)
    job.write(stream.events([*stream.items]), [entry])
    job.write([], [replace(entry, removed_at=LogOffset(max(stream.items), 0), ended_because="its column was dropped")])
    job.run(spark)
    before = job.log_rows("b")
    stream.begin_again()
    stream.grow(2)
    later = [*stream.items][2:]
    job.write(stream.events(later))
    with monkeypatch.context() as patched:
        patched.setattr(LogClaim, "append", lambda *_: (_ for _ in ()).throw(SinkError("no space")))
        with pytest.raises(SinkError, match="no space"):
            job.run(spark)
    mark = (*LogOffset.last_before_real_offsets(), "snapshot")
    assert job.log_rows("b") == [mark, *before]
    job.write([], [replace(entry, definition=replace(entry.definition, incarnation=2))])
    job.run(spark)
    assert job.log_rows("b") == [mark, *stream.expected_rows()]
    assert job.notified()[-1]["b"] == LogOffset.last_of(later[-1])


@every(2, 1)
def test_whole_transactions_are_written_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """With ``write_unit: txn`` an open transaction waits in the state; the result is the same."""
    job, load = WriteFolder(tmp_path / "job"), Load()
    load.write(job)
    job.run(spark, write_unit="txn")
    load.check(job)
    assert all(offset == LogOffset.last_of(offset.tx_offset) for file in job.notified() for offset in file.values())


def test_other_number_of_shape_groups_is_refused(spark: SparkSession, undisturbed: tuple[WriteFolder, Load]) -> None:
    """Shapes would be looked up in other groups, and their logs written again."""
    job = undisturbed[0]
    with pytest.raises(StateError, match=r"was written with shape_groups 2, and the job's shape_groups is 3"):
        job.run(spark, state=StateConfig(str(job.root / "checkpoint"), shape_groups=3, shuffle_partitions=2))


def test_a_shape_stays_in_its_group(spark: SparkSession) -> None:
    """With another one, its writer would be looked for where it is not."""
    values = [f'{{"source": "s", "shape_id": "{shape_id}"}}' for shape_id in ("users", "orders", "naïve 🙂")]
    raw = spark.createDataFrame(
        [("shapes", value.encode(), "p") for value in values], "stream string, value binary, place string"
    )
    groups = {row["value"].decode(): row["shape_group"] for row in to_write_rows(raw, 16).collect()}
    assert [groups[value] for value in values] == ["9", "14", "8"]
