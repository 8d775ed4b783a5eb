"""Compares ``where`` with a PostgreSQL server: the same conditions over the same rows, three-valued."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from flushtracker.errors import DecodeError, PostgresError, ShapeError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.table_bindings import read_bindings, read_types
from flushtracker.shapes.table_binding import case_reason
from flushtracker.shapes.type_binding import user_types
from flushtracker.shapes.where import Where, parse_where
from flushtracker.shapes.where.joined_condition import JoinedCondition
from flushtracker.shapes.where.required_ranges import range_parser
from flushtracker.shapes.where.required_values import value_parser
from flushtracker.shapes.where.value_range import ValueRange
from flushtracker.wal.changes import Column, Relation, Row
from tests.support.mutated_where import mutated
from tests.support.random_where import COLLATED, COLUMNS, SQL_TYPES, RandomWhere, create_types, quoted, random_row

# One letter per row: t, f, u for NULL, z for a division by zero, e for any other error. Rows are tried one by one only
# if the statement over all of them fails, because each needs a subtransaction.
_FUNCTION = """
CREATE FUNCTION pg_temp.outcomes(condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  outcome text;
  result text := '';
  row_id int;
BEGIN
  BEGIN
    EXECUTE format(
      'SELECT string_agg(coalesce(left((%s)::boolean::text, 1), ''u''), '''' ORDER BY id) FROM t', condition
    ) INTO result;
    RETURN result;
  EXCEPTION WHEN data_exception THEN
    result := '';
  END;
  FOR row_id IN SELECT id FROM t ORDER BY id LOOP
    BEGIN
      EXECUTE format('SELECT coalesce(left((%s)::boolean::text, 1), ''u'') FROM t WHERE id = $1', condition)
      INTO outcome USING row_id;
    EXCEPTION
      WHEN division_by_zero THEN outcome := 'z';
      WHEN data_exception THEN outcome := 'e';
    END;
    result := result || outcome;
  END LOOP;
  RETURN result;
END $$
"""
# The SQLSTATE of each condition that the server does not prepare, and 00000 of each other one.
_PREPARES = """
CREATE FUNCTION pg_temp.prepares(conditions text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  condition text;
  states text[] := '{}';
BEGIN
  FOREACH condition IN ARRAY conditions LOOP
    BEGIN
      EXECUTE 'PREPARE mutated AS SELECT FROM t WHERE (' || condition || E'\\n)';
      EXECUTE 'DEALLOCATE mutated';
      states := states || '00000'::text;
    EXCEPTION WHEN OTHERS THEN
      states := states || SQLSTATE::text;
    END;
  END LOOP;
  RETURN states;
END $$
"""
_KEYWORDS = "SELECT word FROM pg_get_keywords()"
SYNTAX_ERROR = "42601"
"""What the server says of text that is no condition at all."""
_COLUMNS = """
SELECT attname, atttypid::bigint FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 1 ORDER BY attnum
"""
_FOLDABLE = re.compile(r"\b(AND|OR|NULL)\b", re.IGNORECASE)
# PostgreSQL computes constants when it plans, and then refuses those that overflow or divide by zero, and a list with
# both timestamps and a date that is later than any of them.
_CONSTANT_FAILS = re.compile("SQLSTATE (22003|22012)|date out of range for timestamp")
_INFINITE_INTERVALS_SINCE = 170_000
_IS_INFINITE = re.compile('type interval: "-?infinity"')
_TABLE = "public", "t"
_LETTERS = {True: "t", False: "f", None: "u"}


@dataclass(slots=True)
class Comparison:
    """What was compared so far. ``differences`` are messages, one per condition."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class WhereComparison:
    """A table of random rows on ``server``, and its rows as capture would see them.

    ``collation`` is that of the text columns.
    """

    def __init__(self, server: LocalPostgres, seed: int, *, row_count: int = 200, collation: str = "default") -> None:
        self._rng = Random(seed)  # noqa: S311 - a reproducible test
        self._seed = f"seed {seed}, {row_count} rows, collation {collation}"
        self._connection: Connection = server.connect(options="-c datestyle=ISO -c timezone=UTC")
        self.rows = self._create(row_count, collation)
        self._relation = self._describe()
        ((oid,),) = rows(self._connection, "SELECT 't'::regclass::oid::bigint")
        self._binding = read_bindings(self._connection, None, [oid])[oid]

    def close(self) -> None:
        self._connection.close()

    def run(self, conditions: int) -> Comparison:
        """Compare random conditions until ``conditions`` of them were comparable."""
        generator, done = RandomWhere(self._rng), Comparison()
        while done.counts["compared"] < conditions:
            self.compare(generator.condition(), done)
        return done

    def run_mutated(self, conditions: int) -> Comparison:
        """Compare so many mutated conditions: what is read here the server reads too, and what is accepted is equal."""
        generator, done = RandomWhere(self._rng), Comparison()
        keywords = self.keywords
        texts = [mutated(self._rng, generator.condition(depth=1), keywords) for _ in range(conditions)]
        read = [text for text in texts if is_read(text)]
        done.counts["refused"] += len(texts) - len(read)
        for text, state in zip(read, self.prepared(read), strict=True):
            if state == SYNTAX_ERROR:
                done.differences.append(f"{self._seed}: where {text!r} is a syntax error, but is read")
            else:
                self.compare(text, done)
        return done

    def prepared(self, conditions: Sequence[str]) -> list[str]:
        """The SQLSTATE with which the server prepares each condition."""
        found = rows(self._connection, "SELECT pg_temp.prepares(%s::text[])", (list(conditions),))
        return [str(state) for state in found[0][0]]

    @property
    def keywords(self) -> list[str]:
        """Those of the server."""
        return [str(word) for (word,) in rows(self._connection, _KEYWORDS)]

    def compare(self, condition: str, done: Comparison) -> None:
        """Compare one condition. It is comparable unless one side refuses it."""
        try:
            where = parse_where(condition)
            matches = where.bind(self._relation)
        except ShapeError:
            done.counts["refused"] += 1
            return
        if case_reason(where.case_mappings, self._binding) is not None:
            done.counts["refused because of the collation"] += 1
            return
        try:
            expected = self._on_server(condition)
        except PostgresError as error:
            done.counts["refused by the server"] += 1
            is_old = self._connection.server_version < _INFINITE_INTERVALS_SINCE
            if not _CONSTANT_FAILS.search(str(error)) and not (is_old and _IS_INFINITE.search(str(error))):
                done.differences.append(f"{self._seed}: where {condition}: {error}, but where accepts it")
            return
        done.counts["compared"] += 1
        found = "".join(outcome_of(matches, row) for row in self.rows)
        is_found = self._index_lookup(where)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            if ours in ("z", "e") and _FOLDABLE.search(condition):
                # PostgreSQL computes what is constant when it plans, and then may not need the operation that fails.
                done.counts["rows with an error that may be unnecessary"] += 1
                continue
            difference = _difference(ours, theirs, done.counts)
            row = self.rows[number]
            if theirs == "t" and not is_found(row):
                difference = "the index does not find the row"
            if difference:
                values = {name: row[name] for name in sorted(where.columns)}
                done.differences.append(f"{self._seed}: where {condition}: {difference} for {values}")
                return

    def compare_query(self, condition: str, done: Comparison) -> None:
        """Compare which rows a condition with subqueries of ``public.t`` is true for."""
        try:
            joined = parse_where(condition).joined(_TABLE, {_TABLE: self._relation})
        except ShapeError:
            done.counts["refused"] += 1
            return
        on_server = condition.replace("public.t", "pg_temp.t")
        try:
            expected = self._on_server(on_server)
        except PostgresError as error:
            done.counts["refused by the server"] += 1
            done.differences.append(f"{self._seed}: where {condition}: {error}, but where accepts it")
            return
        done.counts["compared"] += 1
        done.counts.update(expected)
        found = _joined_outcomes(joined, self.rows)
        for row, ours, theirs in zip(self.rows, found, expected, strict=True):
            if (ours == "t") != (theirs == "t") or (ours == "e") > (theirs == "e"):
                values = {name: row[name] for name in sorted(parse_where(condition).columns)}
                done.differences.append(f"{self._seed}: where {condition}: {ours}, {theirs} on the server for {values}")
                return

    def _index_lookup(self, where: Where) -> Callable[[Row], bool]:
        """Whether an index finds a row by the values and the ranges that ``where`` requires."""
        tests: list[tuple[str, Callable[[str], object], Callable[[Any], bool]]] = []
        for name, values in where.required_values(self._relation).items():
            tests.append((name, value_parser(self._relation, name), values.__contains__))
        for name, found in where.required_ranges(self._relation).items():
            tests.append((name, range_parser(self._relation, name), partial(_contains, found)))
        return lambda row: all(_has(row[name], parse, test) for name, parse, test in tests)

    def _on_server(self, condition: str) -> str:
        """A letter for each row; raises ``PostgresError`` if the server refuses the condition itself."""
        rows(self._connection, f"SELECT FROM t WHERE ({condition}\n) LIMIT 0")
        return str(rows(self._connection, "SELECT pg_temp.outcomes(%s)", (f"{condition}\n",))[0][0])

    def _describe(self) -> Relation:
        """The table as capture knows it: columns from the stream, and from the catalog their types."""
        found = rows(self._connection, _COLUMNS)
        types = read_types(self._connection, [oid for _, oid in found])
        columns = tuple(Column(name, oid) for name, oid in found)
        return Relation(1, "public", "t", "full", columns).with_types(user_types(types.values()))

    def _create(self, row_count: int, collation: str) -> list[Row]:
        collate = f' COLLATE "{collation}"'
        columns = ", ".join(
            f"{name} {SQL_TYPES[oid]}{collate if name in COLLATED else ''}" for name, oid in COLUMNS.items()
        )
        rows(self._connection, _FUNCTION)
        rows(self._connection, _PREPARES)
        for statement in create_types():
            rows(self._connection, statement)
        rows(self._connection, f"CREATE TEMP TABLE t (id serial PRIMARY KEY, {columns})")
        for _ in range(row_count):
            values = random_row(self._rng)
            if self._connection.server_version < _INFINITE_INTERVALS_SINCE:
                values |= {name: None for name in ("iv1", "iv2") if "infinity" in (values[name] or "")}
            texts = ", ".join("NULL" if text is None else quoted(text) for text in values.values())
            rows(self._connection, f"INSERT INTO t ({', '.join(values)}) VALUES ({texts})")  # noqa: S608 - likewise
        # format() calls the output function of the type, as replication does; a cast to text would cut trailing blanks.
        names = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END" for name in COLUMNS)
        found = rows(self._connection, f"SELECT {names} FROM t ORDER BY id")  # noqa: S608 - likewise
        return [dict(zip(COLUMNS, row, strict=True)) for row in found]


def is_read(text: str) -> bool:
    """Whether a condition can be parsed here, for whatever table."""
    try:
        parse_where(text)
    except ShapeError:
        return False
    return True


def outcome_of(matches: Callable[[Row], bool | None], row: Row) -> str:
    try:
        return _LETTERS[matches(row)]
    except DecodeError as error:
        if "a division by zero" in str(error):
            return "z"
        return "c" if "collation" in str(error) else "e"


def _joined_outcomes(joined: JoinedCondition, rows: Sequence[Row]) -> str:
    """A letter for each row: t, f for false or unknown, e for an error; all fail with a subquery that fails."""
    try:
        for row in rows:
            joined.add(_TABLE, row)
    except DecodeError:
        return "e" * len(rows)
    joined.settle()
    return "".join(map(partial(_joined_outcome, joined), rows))


def _joined_outcome(joined: JoinedCondition, row: Row) -> str:
    try:
        return "t" if joined.matches(row) else "f"
    except DecodeError:
        return "e"


def _difference(ours: str, theirs: str, counts: Counter[str]) -> str | None:
    """What is wrong, if anything. An overflow, which is an error for PostgreSQL, is none for us."""
    if ours == theirs:
        return None
    if ours == "c":
        counts["rows with undecided letters"] += 1
        return None
    if theirs == "e":
        counts["rows that PostgreSQL refuses"] += 1
        return None
    return f"{ours} instead of {theirs}"


def _has(text: str | None, parse: Callable[[str], object], test: Callable[[Any], bool]) -> bool:
    return text is not None and test(parse(text))


def _contains(values: ValueRange, value: Any) -> bool:
    return bool(values.low <= value and values.high >= value)
