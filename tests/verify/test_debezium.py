"""A Kafka sink's records are those of a running Debezium, but for the differences of ``docs/kafka_sinks.md``."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.sinks.debezium_types import UNAVAILABLE, connect_type
from tests.support.capture_rig import ROOT, CaptureRig
from tests.support.debezium_beside import BesideDebezium
from tests.support.every_type import LAST_ID, USER_TYPES, earlier_rows, every_type, workload
from tests.support.published_snapshots import PublishingRig
from tests.support.record_differences import ABSENT, Difference, differences

IDENTITIES: Final = {"plain": "DEFAULT", "whole": "FULL", "indexed": "USING INDEX identity"}
"""The REPLICA IDENTITY of each table."""
TABLES: Final = tuple(IDENTITIES)
INDEX: Final = "CREATE UNIQUE INDEX identity ON indexed (needed, id, steady)"


@pytest.fixture
def beside(postgres: LocalPostgres, tmp_path: Path) -> Iterator[BesideDebezium]:
    postgres.execute(*USER_TYPES, *(statement for table in TABLES for statement in every_type(table)))
    postgres.execute(INDEX, *(f"ALTER TABLE {table} REPLICA IDENTITY {name}" for table, name in IDENTITIES.items()))
    postgres.execute(*(statement for table in TABLES for statement in earlier_rows(table)))
    with LocalBroker(tmp_path / "broker") as broker:
        rig = CaptureRig(postgres, broker.bootstrap_servers, tmp_path, lambda name: name)
        rig.create()
        with closing(rig), closing(BesideDebezium(PublishingRig(rig), TABLES)) as found:
            found.start()
            yield found


LEFT_OUT: Final = {"pr", "ln", "ci", "bx", "pl", "tsq"}
ARRAYS_LEFT_OUT: Final = {"a_pr", "a_am", "a_vbits", "a_iv", "a_money", "a_nm", "a_pt", "a_x"}
DEFAULTS: Final = {"id": 0, "needed": 5, "steady": 7, "preset": "pre"}
INFINITE_DAYS: Final = {-2147472692: 2**31 - 1, -2147472691: -(2**31)}
OLD_TIMES: Final = {
    *INFINITE_DAYS.values(),
    *(-735_160, -141_432),
    *(-63_517_780_800_000_000, -12_219_724_800_000_000),
    *("-0043-03-15T12:00:00.000000Z", "0001-01-01T00:00:00.000000Z"),
}
"""Those of the table that are not days of the Gregorian calendar, or are before it."""
PLACES: Final = {"first", "first_in_data_collection", "last_in_data_collection", "last"}
"""Of rows in a snapshot."""
PLACEHOLDERS: Final = [connect_type(oid, -1, {}).unavailable for oid in (17, 25, 1001, 1007, 1009, 2951)]
PLACEHOLDERS.append(f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}')


def column(found: Difference) -> str:
    """The column, if the difference is one of a row or of its schema."""
    if found.part in {"before", "after", "key", "schema key"}:
        return found.name
    row, _, name = found.name.partition(".")
    return name if found.part == "schema" and row in {"before", "after"} else ""


def is_value(found: Difference, *columns: str) -> bool:
    return found.part in {"before", "after"} and found.name in columns


def has_column(found: Difference, *columns: str) -> bool:
    return column(found) in columns


def is_schema_without_facts(found: Difference) -> bool:
    """Ours has no default, and is optional if it is not of the key."""
    name = column(found)
    if not found.part.startswith("schema") or name not in DEFAULTS or ABSENT in (found.theirs, found.ours):
        return False
    known = {**found.theirs, "optional": name != "id"}
    return known.pop("default") == DEFAULTS[name] and bool(found.ours == known)


def is_source_of_a_snapshot(found: Difference) -> bool:
    if (found.op, found.part) != ("r", "source"):
        return False
    if found.name == "snapshot":
        return found.theirs in PLACES and found.ours == "true"
    return found.ours is None if found.name == "txId" else found.name in {"ts_ms", "ts_us", "ts_ns"}


def is_not_sent(found: Difference) -> bool:
    return found.op == "u" and found.part in {"before", "after"} and found.ours in PLACEHOLDERS


def is_array_of_optional(found: Difference) -> bool:
    if is_value(found, "a_n", "a_md0"):
        return found.theirs is None and found.ours in (["NAN"], ["sad", None])
    if found.part != "schema" or not has_column(found, "a_md", "a_md0"):
        return False
    return bool(found.ours == {**found.theirs, "items": {**found.theirs["items"], "optional": True}})


def is_array_of_bits(found: Difference) -> bool:
    if found.part == "schema" and has_column(found, "a_bits"):
        return bool(found.ours["type"] == "array" and found.ours["items"]["name"] == found.theirs["name"])
    return is_value(found, "a_bits") and (found.theirs, found.ours) == (None, ["Cg==", None])


def is_left_out(found: Difference) -> bool:
    return has_column(found, *ARRAYS_LEFT_OUT) and found.theirs == ABSENT


Rule: TypeAlias = Callable[[Difference], bool]
RULES: Final[dict[str, Rule]] = {
    "`source.version`": lambda found: (found.part, found.name, found.ours) == ("source", "version", "flushtracker"),
    "`source.lsn`, `source.sequence`": lambda found: found.part == "source" and found.name in {"lsn", "sequence"},
    "`source.ts_ms`": lambda found: (
        (found.part, found.name) == ("schema", "source.ts_ms") and found.ours == {**found.theirs, "optional": True}
    ),
    "`source` of a row of a snapshot": is_source_of_a_snapshot,
    "headers": lambda found: (
        found.part == "headers" and found.ours == (() if found.op == "r" else ("flushtracker.offset",))
    ),
    "columns that are NOT NULL, or have a default": is_schema_without_facts,
    "NULL in a column with a default": lambda found: (
        is_value(found, *DEFAULTS) and found.ours is None and found.theirs == DEFAULTS[found.name]
    ),
    "other types: composite ones, `line`, `circle`, `box`, `pg_lsn`, `tsquery`": lambda found: (
        has_column(found, *LEFT_OUT) and found.theirs == ABSENT
    ),
    "arrays of `box`, and of extensions' types but `citext`, `hstore` and `ltree`": lambda found: (
        has_column(found, "a_bx") and found.theirs == ABSENT
    ),
    "other arrays of these, of domains, and of `bit varying`, `interval`, `money`, `name`, `point`, `xml`": is_left_out,
    "`name`": lambda found: is_value(found, "nm") and (found.theirs, found.ours) == (None, "a name"),
    "`bit varying(1)` without a bit": lambda found: (
        is_value(found, "vbit1") and (found.theirs, found.ours) == (None, False)
    ),
    "`bit varying(1)` in a snapshot": lambda found: (
        found.op == "r" and is_value(found, "vbit1") and (found.theirs, found.ours) == (None, True)
    ),
    "`money` in a snapshot": lambda found: (
        is_value(found, "money") and (found.op, f"{found.theirs}0") == ("r", found.ours)
    ),
    "dates and times before 1582-10-15, and `infinity` in a `date`, in a snapshot": lambda found: (
        found.op == "r" and is_value(found, "d", "ts", "tz") and found.ours in OLD_TIMES
    ),
    "`infinity` in a `date`": lambda found: (
        (is_value(found, "d") and INFINITE_DAYS.get(found.theirs) == found.ours)
        or (is_value(found, "a_d") and found.ours == [2**31 - 1])
    ),
    "`infinity` as an `interval`": lambda found: is_value(found, "iv") and (found.theirs, found.ours) == (0, 2**63 - 1),
    "a domain over a type with a length or precision": lambda found: has_column(found, "mt"),
    "arrays of `bit(n)`": is_array_of_bits,
    "arrays of `time` and `timetz`": lambda found: (
        is_value(found, "a_t", "a_ttz") and found.ours[0] in (49_890_123_789, "11:51:30.123789Z")
    ),
    "arrays of `numeric` with `NaN` or `Infinity`, and of an enum with NULL": is_array_of_optional,
    "arrays of several dimensions": lambda found: (
        is_value(found, "a2", "a2_tx") and found.ours in ([1, 2, 3, None], ["a", "b", "c", None])
    ),
    "large arrays that were not sent": lambda found: is_not_sent(found) and found.theirs is None,
}
"""What is a difference of each row of the page's table."""


def test_records_are_those_of_debezium(beside: BesideDebezium, postgres: LocalPostgres) -> None:
    """Each difference is exactly one of the page's, and each of these is found."""
    postgres.execute(*(statement for table in TABLES for statement in workload(table)))
    last = {"id": LAST_ID}
    found = [
        each for table in TABLES for each in differences(table, beside.theirs(table, last), beside.ours(table, last))
    ]
    explained = [(each, [what for what, rule in RULES.items() if rule(each)]) for each in found]
    assert [(each, reasons) for each, reasons in explained if len(reasons) != 1] == []
    assert {reason for _, (reason,) in explained} == RULES.keys()


def test_differences_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "kafka_sinks.md").read_text()
    _, _, section = page.partition("### Differences from Debezium")
    table = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", section.partition("\n## ")[0], re.MULTILINE)
    assert table[2:] == list(RULES)
