"""Which of the listed tables get a shape: by the option ``--tables``, or by an answer on the terminal."""

import re
from collections.abc import Sequence
from typing import Final

from flushtracker.config.table_names import parse_table
from flushtracker.errors import ConfigError, did_you_mean
from flushtracker.operate.init.candidates import Candidate
from flushtracker.shapes.item_key import sql_name
from flushtracker.shapes.table_binding import dotted
from flushtracker.wal.changes import TableName

ALL: Final = "all"
_NAME: Final = re.compile(r'\s*((?:"(?:[^"]|"")*"|[^",])+?)\s*(?:,|$)')


def chosen_tables(text: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """``all`` that are not refused, or those that the text names, as ``schema.name, schema.name``, in the list's order.

    Raises:
        ConfigError: a name is not that of a listed table, or the table is refused.
    """
    if text.strip() == ALL:
        return [each for each in candidates if not each.reasons]
    by_name = {each.name: each for each in candidates}
    chosen = set[TableName]()
    for table in _names(text):
        if table not in by_name:
            typed = {dotted(each): typed_name(each) for each in by_name}
            raise ConfigError(
                f"there is no table {dotted(table)} in the list{did_you_mean(dotted(table), typed, typed.__getitem__)}"
            )
        if reasons := by_name[table].reasons:
            raise ConfigError(f"{typed_name(table)} is refused: {'; '.join(reasons)}")
        chosen.add(table)
    return [each for each in candidates if each.name in chosen]


def typed_name(table: TableName) -> str:
    """The table as it is typed, with double quotes where they are needed."""
    return ".".join(map(sql_name, table))


def _names(text: str) -> list[TableName]:
    """
    >>> _names('public.a, "My, Schema"."It""s"')
    [('public', 'a'), ('My, Schema', 'It"s')]
    """
    names, end = [], 0
    while end < len(text):
        found = _NAME.match(text, end)
        if found is None:
            raise ConfigError(f"{text[end:]!r} is not a list of tables, such as: public.orders, public.customers")
        try:
            names.append(parse_table(found[1]))
        except ValueError as error:
            raise ConfigError(f"{error}; or name {ALL}") from None
        end = found.end()
    if not names:
        raise ConfigError(f"no table is named; name some, as schema.name, or {ALL}")
    return names
