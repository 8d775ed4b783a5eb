"""Spark's rows of shapes with subqueries are those of the other reader, and those of their queries."""

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flushtracker.errors import DecodeError, PositionError
from flushtracker.shape_log.spark.shape_log_reader import SparkShapeLogReader
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.wal.log_offset import LogOffset
from tests.support.folded_log import folded
from tests.support.joined_history import TABLES, JoinedWorld, random_case
from tests.support.joined_log import Answer, entries, joined_shape, played
from tests.support.joined_partitions import partitioned_case
from tests.support.sample_registry import register
from tests.support.seeds import every, seeds
from tests.support.shape_log_rows import append, commit, item

_SEEDS: Final = int(os.environ.get("FLUSHTRACKER_JOINED_SEEDS", "1"))


def _rows(spark: SparkSession, log: str, shape_id: str, tx: int | None = None) -> Answer:
    found = SparkShapeLogReader(spark, log).read_rows(shape_id, None if tx is None else LogOffset.last_of(tx)).rows
    return sorted([tuple(row) for row in found.collect()], key=repr)


@every(3, 0)
@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_spark_has_the_query_of_random_shapes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Nested, NOT IN, NULLs, one table in several roles, partitions; at earlier commits, and after a fold."""
    for number in count(seed):
        log = str(tmp_path / f"log{number}")
        create_shape_log(log)
        rng = Random(number)  # noqa: S311  reproducible
        world, definitions = partitioned_case(rng, 2) if number % 2 else random_case(rng, 2)
        first = world.lsn = 1000
        answers = played(log, world, definitions)
        middle, told = max(answers, key=lambda answer: sum(map(len, answer[1].values())))
        if any(told.values()):
            break
    register(log, *entries(definitions))
    for definition in definitions:
        # No log is read past its end, and a shape's last transaction may be before this one.
        found = ShapeLogReader(log).finder.find_rows(definition.id, None, None, typed=False, even_if_ended=False)
        at = min(middle, found.last_commit or middle)
        assert _rows(spark, log, definition.id, at) == told[definition.id], f"{definition} at {middle}"
    assert folded(log, 0, (first + world.lsn) // 2)
    last = answers[-1][1]
    for definition in definitions:
        assert _rows(spark, log, definition.id) == last[definition.id], f"{definition}"


@every(3, 1)
def test_typed_columns_bound_and_errors_are_those_of_the_other_reader(spark: SparkSession, log: str) -> None:
    """Its rows have no position; and without its definition they cannot be read."""
    shape = joined_shape("NOT IN")
    world = JoinedWorld(Random(5), dict.fromkeys(TABLES, "full"))  # noqa: S311  reproducible
    played(log, world, [shape])
    with pytest.raises(PySparkException, match="several tables, not joined here"):
        SparkShapeLogReader(spark, log).read_rows(shape.id).rows.collect()
    register(log, *entries([shape]))
    reader = SparkShapeLogReader(spark, log)
    expected, found = ShapeLogReader(log).read_rows(shape.id, typed=True), reader.read_rows(shape.id, typed=True)
    here, there = expected.rows.to_pylist(), found.rows.toArrow().to_pylist()
    assert sorted(there, key=repr) == sorted(here, key=repr) != []
    assert found.bound == expected.bound
    with pytest.raises(PositionError, match="has subqueries, so its rows cannot be followed"):
        _ = found.position


@every(3, 2)
def test_a_row_without_an_outcome_fails_the_query(spark: SparkSession, log: str) -> None:
    """One of the shape's own table when it is evaluated; one that a subquery reads before."""
    shape = replace(joined_shape("IN"), where="1 / id > 0 OR a IN (SELECT a FROM main.projects WHERE 1 / id > 0)")
    append(log, [item((16, 0), "insert", '"main"."tasks"/*/"0"', {"id": "0", "a": "1"}, shape_id="shape")])
    append(log, [commit(16, shape_id="shape")])
    register(log, *entries([shape]))
    with pytest.raises(PySparkException, match="division by zero"):
        _rows(spark, log, "shape")
    append(log, [item((24, 0), "insert", '"main"."projects"/*/"0"', {"id": "0", "a": "1"}, shape_id="shape")])
    append(log, [commit(24, shape_id="shape")])
    with pytest.raises(DecodeError, match="division by zero"):
        _rows(spark, log, "shape")
