"""The changes between some rows and others: applied to the first, they give the others, whatever the tables' sizes."""

import json
from random import Random

import pyarrow as pa
import pytest

from flushtracker.errors import DecodeError
from flushtracker.shape_log.table import external_sort
from flushtracker.shape_log.table.difference_rows import changes_between
from tests.support.log_follower import fold_strictly
from tests.support.snapshot_world import Table

_KEYS = [f"k{number}" for number in range(40)] + ["Grüße", "\U0001f600", "\uffff", 'a"b']


def random_rows(rng: Random) -> Table:
    """Rows in the order of their keys, with other columns in each."""
    share = rng.choice([0, 0.1, 0.5, 1])
    names = rng.choice([["a", "b"], ["a"], ["a", "c"], ["a", "b", "c"]])
    return {
        key: {"id": key, **{name: rng.choice([None, "", "x"]) for name in names if rng.random() < 0.9}}
        for key in sorted(_KEYS)
        if rng.random() < share
    }


def tables_of(rng: Random, rows: Table) -> list[pa.Table]:
    """In tables of any size, and with the columns of a row in any order."""
    columns = {"key": list(rows), "value": []}
    for row in rows.values():
        cells = list(row.items())
        rng.shuffle(cells)
        columns["value"].append(json.dumps(dict(cells), ensure_ascii=rng.random() < 0.5))
    whole, found, place = pa.table(columns, schema=pa.schema([("key", pa.string()), ("value", pa.string())])), [], 0
    while place < len(whole):
        size = rng.randint(0, 9)
        found.append(whole.slice(place, size))
        place += size
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_changes_make_of_some_rows_the_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each can follow; the deletes come first; and what is the same has none. Also if they are sorted in files."""
    monkeypatch.setattr(external_sort, "MOST_BYTES", 500)
    rng = Random(seed)  # noqa: S311  reproducible
    for _ in range(10):
        before, after = random_rows(rng), random_rows(rng)
        if rng.random() < 0.5:
            after = {key: (before.get(key, row) if rng.random() < 0.8 else row) for key, row in after.items()}
        found = changes_between(tables_of(rng, before), tables_of(rng, after), rng.choice([(), ("id",)]))
        changes = [row for table in found for row in table.to_pylist()]
        table = {key: dict(row) for key, row in before.items()}
        fold_strictly(table, changes)
        assert table == after
        operations = [row["operation"] for row in changes]
        assert operations == sorted(operations, key=lambda operation: operation != "delete")
        assert not {row["key"] for row in changes} & {key for key in before if before[key] == after.get(key)}
        for row in changes:
            check_values(row, before, after)


def check_values(row: dict[str, str], before: Table, after: Table) -> None:
    key, value = row["key"], json.loads(row["value"])
    if row["operation"] == "delete":
        assert value == before[key]
    else:
        assert value == after[key]
    if row["operation"] == "update":
        changed = {name: text for name, text in before[key].items() if after[key][name] != text}
        assert json.loads(row["old_value"]) == changed
    else:
        assert row["old_value"] is None


def test_a_row_that_is_another_by_a_key_column_is_deleted_and_inserted() -> None:
    """The texts of two keys may be the same although their columns are not, if the shape has another key since."""
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    before = pa.table({"key": ["7"], "value": ['{"id":"7","code":"1"}']}, schema=schema)
    after = pa.table({"key": ["7"], "value": ['{"id":"2","code":"7"}']}, schema=schema)
    for key_columns, operations in (((), ["update"]), (("code",), ["delete", "insert"])):
        (found,) = changes_between([before], [after], key_columns)
        assert found["operation"].to_pylist() == operations


def test_a_row_without_columns_is_an_error() -> None:
    """It cannot be compared."""
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    whole, none = ({"key": ["7"], "value": [value]} for value in ("{}", None))
    with pytest.raises(DecodeError, match="not a JSON object"):
        list(changes_between([pa.table(whole, schema=schema)], [pa.table(none, schema=schema)]))
