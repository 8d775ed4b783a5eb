"""``case_differences``: where the server's ``lower`` and ``upper`` differ from the conditions here, by collation.

The server itself maps the texts of :mod:`flushtracker.shapes.where.case_probes`: the result depends on the collation's
provider, its locale, and the version of the library that the server process has loaded. That cannot change during a
connection, so each collation is checked once per connection, except those without a language, which are the same
everywhere.
"""

from collections.abc import Iterable
from typing import Final

from psycopg import NotSupportedError
from psycopg._encodings import pg2pyenc

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows, server_encoding
from flushtracker.shapes.where.case_probes import is_expected, probes
from flushtracker.shapes.where.letter_case import LetterCase

DEFAULT: Final = 100
"""The OID of the collation that stands for the database's."""
# The provider of a collation `c` in a database `d`. All versions name the column of the database's provider alike;
# before 15 there is only the C library.
_PROVIDER: Final = """
CASE c.collprovider WHEN 'd' THEN coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') ELSE c.collprovider::text END
"""
_PLAIN: Final = "'C', 'POSIX', 'C.UTF-8', 'C.UTF8', 'C.utf8'"
IS_BYTEWISE: Final = f"""
{_PROVIDER} = 'b' OR {_PROVIDER} = 'c' AND CASE c.oid WHEN 100 THEN d.datcollate ELSE c.collcollate END IN ({_PLAIN})
"""
"""Whether a collation ``c`` orders texts by bytes in a database ``d``: those without a language do."""
_NAMES: Final = f"""
SELECT c.oid::bigint, concat(quote_ident(n.nspname), '.', quote_ident(c.collname)), {_PROVIDER} = 'b'
  OR {_PROVIDER} = 'c' AND CASE c.oid WHEN 100 THEN d.datctype ELSE c.collctype END IN ({_PLAIN})
FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
JOIN pg_database d ON d.datname = current_database()
WHERE c.oid = ANY(%s::oid[])
"""  # noqa: S608  a constant
# Unchanged texts are not returned. The result has the collation, under which different texts may be equal.
_MAPPED: Final = """
SELECT probe, nullif(lower(probe COLLATE {0}) COLLATE "C", probe), nullif(upper(probe COLLATE {0}) COLLATE "C", probe)
FROM unnest(%s::text[]) AS p(probe)
"""
_CASES: Final[tuple[LetterCase, ...]] = ("lower", "upper")
_UTF8: Final = "UTF8"


def case_differences(connection: Connection, collations: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """One difference per function, such as ``lower('I') is 'ı'``; collations without differences have none.

    Raises ``PostgresUnavailableError`` if the connection is lost.
    """
    known = connection.case_differences
    if unknown := sorted(set(collations) - known.keys()):
        for oid, name, is_plain in rows(connection, _NAMES, (unknown,)):
            known[oid] = () if is_plain else _differences(connection, name)
    return known


def _differences(connection: Connection, collation: str) -> tuple[str, ...]:
    rows(connection, "SAVEPOINT mapping")
    try:
        mapped = rows(connection, _MAPPED.format(collation), (_probes(server_encoding(connection)),))
    except PostgresUnavailableError:
        raise
    except PostgresError as error:
        # A locale may be missing on the server; then users' statements fail, too.
        rows(connection, "ROLLBACK TO mapping")
        return tuple(f"{case}('I') fails ({error})" for case in _CASES)
    rows(connection, "RELEASE mapping")
    return tuple(
        found for place, case in enumerate(_CASES, 1) if (found := _first_difference(mapped, place, case)) is not None
    )


def _first_difference(mapped: list[tuple[str | None, ...]], place: int, case: LetterCase) -> str | None:
    for row in mapped:
        probe = row[0] or ""
        result = probe if row[place] is None else row[place] or ""
        if not is_expected(probe, result, case):
            before, after = _shown(probe, result)
            return f"{case}('{before}') is '{after}'"
    return None


def _shown(probe: str, result: str) -> tuple[str, str]:
    """The first differing characters of a long probe, or all of a short one."""
    if len(probe) != len(result) or len(probe) < 3:
        return probe[:2], result[:4]
    return next((before, after) for before, after in zip(probe, result, strict=True) if before != after)


def _probes(encoding: str) -> list[str]:
    """The probes that the encoding has; in most multibyte encodings, only the ASCII ones."""
    if encoding == _UTF8:
        return list(probes())
    try:
        codec = pg2pyenc(encoding.encode())
    except NotSupportedError:
        codec = "ascii"
    is_single = codec.startswith(("iso8859", "cp12", "koi8", "cp866", "cp874"))
    return [each for each in probes() if _fits(each, codec if is_single else "ascii")]


def _fits(text: str, codec: str) -> bool:
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        return False
    return True
