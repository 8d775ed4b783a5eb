"""A shape's ``where`` means what PostgreSQL means: the same random conditions over the same rows, on a real server."""

from collections.abc import Sequence
from itertools import product

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.shapes.where.number_values import exact_arithmetic, parse_numeric
from tests.support.new_server import running_server
from tests.support.random_where import COLUMNS
from tests.support.seeds import first_seed, in_turn
from tests.support.server_versions import binaries_of, runs_here
from tests.support.where_comparison import SYNTAX_ERROR, Comparison, WhereComparison, is_read


def test_random_conditions_have_the_same_outcomes_as_on_the_server(postgres: LocalPostgres) -> None:
    """In each row: true, false, unknown, or a division by zero. A failure shows the seed, the condition and the row."""
    seed = first_seed()
    for collation in ("default", "C", "pg_unicode_fast"):
        comparison = WhereComparison(postgres, seed, row_count=100, collation=collation)
        assert comparison.run(150).differences == []
        comparison.close()


def test_mutated_conditions_are_refused_or_mean_what_they_mean_on_the_server(postgres: LocalPostgres) -> None:
    """What is read here the server reads, too, and what is accepted has the same outcomes."""
    _compare_mutated(postgres, ("default", "C", "pg_unicode_fast"))


@pytest.mark.skipif(not runs_here(), reason="the servers are built for 64-bit x86 Linux")
@pytest.mark.parametrize("version", in_turn([14, 15, 16, 17]))
def test_mutated_conditions_mean_the_same_on_each_version(version: int) -> None:
    """Each has keywords of its own, and reads other numbers; what is accepted here is what all of them read alike."""
    with running_server(binaries_of(version)) as server:
        _compare_mutated(server, ("default", "C", "und-x-icu"))


def test_long_numbers_are_calculated_as_on_the_server(postgres: LocalPostgres) -> None:
    """To the last digit, and refused where the result is longer than a numeric may be."""
    texts = ["7" * 40_000, f"0.{'7' * 16_383}", f"{'2' * 999}.{'5' * 999}", "1e131071", f"9999.{'9' * 40}", "-7.3"]
    for operator, left, right in product("+-*/%", texts, texts):
        [(theirs,)] = postgres.execute(
            f"DO $$ BEGIN PERFORM set_config('test.found', ('{left}'::numeric {operator} '{right}'::numeric)::text, "
            "false); EXCEPTION WHEN numeric_value_out_of_range THEN PERFORM set_config('test.found', 'e', false); "
            "END $$",
            "SELECT current_setting('test.found')",
        )
        try:
            found = exact_arithmetic(operator, whole=False)(parse_numeric(left), parse_numeric(right))
        except OverflowError:
            assert theirs == "e", (operator, left[:20], right[:20])
        else:
            # PostgreSQL has no negative zero.
            text = format(found if found else found.copy_abs(), "f")
            assert text == theirs, (operator, left[:20], right[:20])


def _compare_mutated(server: LocalPostgres, collations: Sequence[str]) -> None:
    seed = first_seed()
    comparison = WhereComparison(server, seed, row_count=20, collation=collations[seed % len(collations)])
    done = comparison.run_mutated(2000)
    comparison.close()
    assert done.differences == []
    assert done.counts["compared"] > 150
    assert done.counts["refused"] > 1000


def test_no_keyword_is_a_name_here_that_is_none_on_the_server(postgres: LocalPostgres) -> None:
    """For columns, types and literals of a type; where the server has no such column, that is no syntax error."""
    comparison = WhereComparison(postgres, seed=1, row_count=1)
    templates = ("{} = 1", "NOT {} = 1", "j1 = {}", "{} IS NULL", "({})", "- {} > 1", "j1 BETWEEN {} AND {}",
                 "j1 IN (1) AND {}", "{} LIKE 'a'", "{} || {} = t1", "'a'::{} = t1", "{} 'a' = t1", "'a'::{}[] = at1",
                 "CAST('a' AS {}) = t1", "'a'::public.{} = t1", "'a'::{}.x = t1", "{}.x 'a' = t1", "lower({}) = 'a'",
                 "t1 IN (SELECT {} FROM public.t)", "t1 IN (SELECT t1 FROM public.{})",
                 "t1 IN (SELECT t1 FROM {}.t)")  # fmt: skip
    texts = [
        text for word in comparison.keywords for template in templates if is_read(text := template.format(*[word] * 2))
    ]
    states = comparison.prepared(texts)
    comparison.close()
    assert [text for text, state in zip(texts, states, strict=True) if state == SYNTAX_ERROR] == []
    assert len(texts) > 3000


@pytest.mark.parametrize(
    "conditions",
    [
        ["r1 IN (1.0, '0.1')", "r1 IN (0.5, '0.1', 3)", "n1 IN (0.5::real, '0.1')", "k1 IN (16777216, '0.1'::real)"],
        ["t1 ILIKE 'k%'", "t1 ILIKE 'i'", "v1 ILIKE '%i_'", "lower(t1) IN ('i', 'k')", "upper(t1) = 'SS'"],
        [
            "b1 NOT IN (TRUE) = b2",
            "b1 IS NULL = b2",
            "b1 IN (TRUE) IN (TRUE)",
            "j1 = +5",
            "-9223372036854775808 / 3 = j1",
        ],
        ["j1 / -2147483648 = 0", "9999 / -9223372036854775808 = 0", "n1 / 3 = 0.03333333333333333333"],
        ["k2 / n2 = 1 OR--\n(1 NOT IN ('3', 0.5::real))", "k2 / n2 = 1 or\t1 = 1"],
    ],
    ids=[
        "lists with reals",
        "letters without an ASCII case",
        "operators in a row and signs",
        "quotients",
        "constants that decide",
    ],
)
def test_conditions_that_once_differed_agree(postgres: LocalPostgres, conditions: list[str]) -> None:
    """Each was found by comparing random conditions."""
    comparison, done = WhereComparison(postgres, seed=1), Comparison()
    for condition in conditions:
        comparison.compare(condition, done)
    comparison.close()
    assert done.differences == []
    assert done.counts["compared"] == len(conditions)


def test_subqueries_compare_the_columns_of_all_types_as_the_server_does(postgres: LocalPostgres) -> None:
    """Each type with each: those that one of the two does not have, edge values, NULLs, and ``NOT IN`` without them."""
    comparison, done = WhereComparison(postgres, first_seed(), row_count=60), Comparison()
    prefixes = [name[:-1] for name in COLUMNS if name.endswith("1")]
    for outer, inner in product(prefixes, prefixes):
        query = f"SELECT {inner}2 FROM public.t"  # noqa: S608  a test's own
        comparison.compare_query(f"{outer}1 IN ({query})", done)
        comparison.compare_query(f"{outer}1 NOT IN ({query} WHERE {inner}2 IS NOT NULL AND b2)", done)
    comparison.close()
    assert done.differences == []
    assert done.counts["compared"] > 2 * len(prefixes)
    assert min(done.counts[outcome] for outcome in "tfu") > len(prefixes)


def test_an_index_finds_the_rows_that_match_on_the_server(postgres: LocalPostgres) -> None:
    """By prefixes with each kind of escape, and by ranges whose ends are rounded as the column's values are."""
    conditions = [
        *("t1 LIKE '50!%%' ESCAPE '!'", "t1 LIKE 'a!_%' ESCAPE '!'", "t1 LIKE 'aab' ESCAPE 'a'"),
        *(r"t1 LIKE 'a\%' ESCAPE ''", r"t1 LIKE '50\%%'", "c1 LIKE 'a%'", "v1 LIKE 'ab'"),
        *("r1 <= '0.1'", "r1 >= '0.1'::real", "r1 >= 0.1", "r1 BETWEEN 0.1 AND 0.5", "f1 <= 0.1"),
        *("iv1 >= '30 days'", "iv1 < '1 mon'", "tm1 BETWEEN '12:30' AND '24:00'"),
    ]
    comparison, done = WhereComparison(postgres, seed=1), Comparison()
    for condition in conditions:
        comparison.compare(condition, done)
    comparison.close()
    assert done.differences == []
    assert done.counts["compared"] == len(conditions)
