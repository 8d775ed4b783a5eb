"""What releases left amid their work is continued exactly; ``make fixtures`` writes what this one leaves."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import flushtracker
from flushtracker.jvm.spark_version import installed_version, supported_minor
from tests.support.release_fixture import FIXTURES, open_fixture


def _continued() -> list[Path]:
    """The fixtures of this Spark and of earlier ones: Spark does not promise to read what a later one wrote."""
    here = supported_minor(installed_version())
    return [path for path in sorted(FIXTURES.glob("*.zip")) if path.stem.rpartition("-")[2] <= here]


@pytest.mark.parametrize("path", _continued(), ids=lambda path: path.stem)
def test_what_a_release_left_inside_transactions_is_continued_exactly(
    spark: SparkSession, tmp_path: Path, path: Path
) -> None:
    """Acks, rows and notifications are those of its own jobs, which were not stopped; nothing is done twice."""
    jobs, facts = open_fixture(path, tmp_path)
    left = jobs.outcome()
    jobs.run(spark, [], [])
    assert (jobs.outcome(), jobs.positions()) == (left, facts["positions"])
    jobs.run(spark, facts["track"], facts["write"])
    outcome = jobs.outcome()
    assert outcome == facts["outcome"]
    assert jobs.followed(facts["positions"]) == facts["followed"]
    assert len(outcome["acks"]) > len(left["acks"])
    assert all(len(rows) > len(left["rows"][shape_id]) > 0 for shape_id, rows in outcome["rows"].items())


def test_this_release_has_a_fixture() -> None:
    """`make fixtures` writes it, on the oldest Spark, so that each later one continues it."""
    assert f"{flushtracker.__version__}-spark-4.0.zip" in [path.name for path in FIXTURES.glob("*.zip")]


def test_a_fixture_has_work_left(tmp_path: Path) -> None:
    """In both jobs, a transaction is begun and not ended, and followers have something to read."""
    jobs, facts = open_fixture(FIXTURES / f"{flushtracker.__version__}-spark-4.0.zip", tmp_path)
    assert facts["track"]
    assert '"has_begin":false' in facts["write"][0]["shape_changes"][0].replace(" ", "")
    assert all(rows == [] for _, rows in jobs.followed(facts["positions"]).values())
    assert all(rows for _, rows in facts["followed"].values())
