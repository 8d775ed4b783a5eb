"""The file in a checkpoint that names its streams, on storage that refuses, damages or loses."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flushtracker.errors import StateError
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.tracking.job.driver import REMEDIES

_IDENTITY = {"format": "kafka", "fragments": "f (id)"}
_PLAN = RecoveryPlan({0: PartitionPlan(100, {"7301/1/shapes": 40})})


class _RefusesToRename:
    """A mock of a Hadoop file system that reports a failed rename by returning false, as several do."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def rename(self, *_paths: Any) -> bool:
        return False


@pytest.mark.parametrize("recovers", [True, False])
def test_rename_that_fails_silently_ends_the_start(spark: SparkSession, tmp_path: Path, *, recovers: bool) -> None:
    """Without the file, the next start would know nothing of the recovery and read what it skipped."""
    origin = CheckpointOrigin(spark, str(tmp_path / "checkpoint"), REMEDIES)
    origin._files._system = _RefusesToRename(origin._files._system)
    with pytest.raises(StateError, match=r"refuses to rename a file to flushtracker\.json; correct that"):
        origin.replace(_IDENTITY, _PLAN) if recovers else origin.open(_IDENTITY)
    again = CheckpointOrigin(spark, str(tmp_path / "checkpoint"), REMEDIES)
    again.replace(_IDENTITY, _PLAN)
    assert CheckpointOrigin(spark, str(tmp_path / "checkpoint"), REMEDIES).open(_IDENTITY) == _PLAN


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"v": 1, "streams": 5, "starts": {}}'])
def test_damaged_file_is_refused_with_a_remedy(spark: SparkSession, tmp_path: Path, content: bytes) -> None:
    """One line, and no traceback of what a parser makes of it."""
    origin = CheckpointOrigin(spark, str(tmp_path / "checkpoint"), REMEDIES)
    assert origin.open(_IDENTITY) == RecoveryPlan()
    (tmp_path / "checkpoint" / "flushtracker.json").write_bytes(content)
    # Hadoop notices damage by itself while it has a file's checksum, which object stores do not keep.
    (tmp_path / "checkpoint" / ".flushtracker.json.crc").unlink(missing_ok=True)
    with pytest.raises(
        StateError, match=r"flushtracker\.json is malformed: .*; restore it, or restart capture"
    ) as caught:
        origin.open(_IDENTITY)
    assert "\n" not in str(caught.value)
