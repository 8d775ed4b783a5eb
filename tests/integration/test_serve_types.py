"""What the HTTP server says of types and values, beside the catalogs and the texts of real servers."""

import json
from random import Random

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.serve.rendering import Rendering, iso_interval
from flushtracker.serve.schema import schema_json
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from tests.support.new_server import running_server
from tests.support.seeds import in_turn
from tests.support.server_versions import binaries_of, runs_here

_TYPES = """
SELECT t.oid::int, coalesce(e.typname, t.typname), e.oid IS NOT NULL FROM pg_type t
LEFT JOIN pg_type e ON e.typarray = t.oid
WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype IN ('b', 'r', 'm')
AND coalesce(e.typtype, 'b') NOT IN ('c', 'p')
ORDER BY 1
"""


def _compare_types(server: LocalPostgres) -> None:
    found = server.execute(_TYPES)
    assert len(found) > 120
    columns = tuple(ColumnBinding(n, f"c{n}", oid, -1, 0) for n, (oid, _, _) in enumerate(found))
    said = json.loads(schema_json(columns, TableBinding(7, ("public", "t"), (), columns)))
    expected = [{"type": name, **({"dims": 1} if is_array else {})} for _, name, is_array in found]
    assert [said[column.name] for column in columns] == expected


def test_every_type_of_the_catalog_has_its_name(postgres: LocalPostgres) -> None:
    """And every array that of its items."""
    _compare_types(postgres)


@pytest.mark.long
@pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")
@pytest.mark.parametrize("version", in_turn([14, 15, 16, 17]))
def test_every_type_of_older_catalogs_has_its_name(version: int) -> None:
    """None has another OID there."""
    with running_server(binaries_of(version)) as server:
        _compare_types(server)


def test_intervals_are_those_of_a_server_in_iso_8601(postgres: LocalPostgres) -> None:
    """One by one, and in arrays, for each sign of each part."""
    rng = Random(1)  # noqa: S311  reproducible

    def number(most: int) -> int:
        return rng.choice([0, 0, rng.randint(-most, most)])

    texts = [
        f"{number(400)} months {number(900)} days {number(10 ** rng.randrange(14))} microseconds" for _ in range(500)
    ]
    texts += ["0", "infinity", "-infinity", "178000000 years"]
    values = ", ".join(f"('{text}'::interval)" for text in texts)
    styles = {}
    for style in ("postgres", "iso_8601"):
        [(singles, array)] = postgres.execute(
            f"SET intervalstyle = {style}",
            f"SELECT array_agg(i::text), array_agg(i)::text FROM (VALUES {values}) v (i)",  # noqa: S608  our own
        )
        styles[style] = singles, array
    (ours, our_array), (theirs, their_array) = styles["postgres"], styles["iso_8601"]
    assert [iso_interval(text) for text in ours] == theirs
    row = Rendering("", ("i", "a", "n")).value(json.dumps({"t": ours[0], "i": ours[1], "a": our_array, "n": None}))
    assert json.loads(row) == {"t": ours[0], "i": theirs[1], "a": their_array, "n": None}
