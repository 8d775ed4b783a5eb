"""The queries of docs/shape_log.md for other programs, as they are there, and what they are judged by."""

import re
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import duckdb
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from flushtracker.delta.storage import query_rows
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import read_shape
from tests.support.shape_log_rows import SOURCE

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "shape_log.md").read_text()
_BLOCKS: Final = re.findall(r"```(?:sql|python)\n(.*?)```", _PAGE, re.DOTALL)

Rows = list[tuple[str | None, ...]]
ForeignReader = Callable[[str, int, str, str], Rows]
"""Reads the columns ``id`` and another one of a shape in one version of the log at a path; its source is the page's."""


def documented(word: str) -> str:
    """The one block of the page that contains ``word``."""
    (block,) = [block for block in _BLOCKS if word in block]
    return str(block)


def joined(word: str, tables: Mapping[str, str]) -> str:
    """The same block for a shape with subqueries, on these tables in place of the page's, as it says."""
    program = documented(word)
    instead = documented("table = pl.col" if "import polars" in program else "split_part(key")
    *lines, last = program.rstrip().split("\n")
    assert "folded" in last
    text = "\n".join([*lines, instead])
    for before, after in tables.items():
        assert f'"public"."{before}"' in text
        text = text.replace(f'"public"."{before}"', after)
    return text


def _filled(query: str, log: str, version: int, shape_id: str, column: str, source: str = SOURCE) -> str:
    """The query with a reader's own names for those of the page; raises ``AssertionError`` if it lacks one."""
    # The path is last, since it may contain any of the others.
    for before, after in [("'users'", f"'{shape_id}'"), ('shape_id="users"', f'shape_id="{shape_id}"')]:
        query = query.replace(before, after)
    for before, after in [("41", str(version)), ("city", column), (SOURCE, source), ("data/log", log)]:
        assert before in query
        query = query.replace(before, after)
    return query


def duckdb_rows(
    log: str, version: int, shape_id: str, column: str, program: str | None = None, *, source: str = SOURCE
) -> Rows:
    """By DuckDB's own Delta extension, which a package on PyPI has with DuckDB's signature."""
    spec = find_spec("duckdb_ext")
    assert spec is not None
    (extension,) = Path(next(iter(spec.submodule_search_locations or []))).glob("extensions/*/*/delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        connection.execute(_filled(program or documented("TYPE delta"), log, version, shape_id, column, source))
        return _ordered(connection.fetchall())


def polars_rows(
    log: str, version: int, shape_id: str, column: str, program: str | None = None, *, source: str = SOURCE
) -> Rows:
    names: dict[str, Any] = {}
    program = _filled(program or documented("import polars"), log, version, shape_id, column, source)
    exec(program, names)  # noqa: S102  the page's program
    return _ordered(names["users"].rows())


def spark_rows(spark: SparkSession, query: str | None = None) -> ForeignReader:
    def read(log: str, version: int, shape_id: str, column: str) -> Rows:
        text = _filled(query or documented("VERSION AS OF"), log, version, shape_id, column)
        return _ordered([tuple(row) for row in spark.sql(text).collect()])

    return read


def folded_rows(log: str, version: int, shape_id: str, column: str, shapes: str | None = None) -> Rows:
    """What :func:`read_shape` has of that version: of a table that has its rows, and nothing else but ``shapes``."""
    rows = query_rows(DeltaTable(log, version=version), "SELECT * FROM rows")
    if shape_id not in rows["shape_id"].to_pylist():
        # Without the registry's entry it would be no shape of this log.
        return []
    with tempfile.TemporaryDirectory() as copy:
        create_shape_log(copy)
        write_deltalake(copy, rows, mode="append")
        found = read_shape(copy, shape_id, shapes=shapes).rows.to_pylist()
    return _ordered([(row.get("id"), row.get(column)) for row in found])


def _ordered(rows: list[Any]) -> Rows:
    return sorted(rows, key=repr)
