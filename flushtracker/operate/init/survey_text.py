"""What ``flushtracker init`` prints: the tables, what refuses some, and what the server lacks, as statements."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from flushtracker.config.units import bytes_text
from flushtracker.errors import printable
from flushtracker.operate.init.candidates import Candidate
from flushtracker.operate.init.chosen_tables import typed_name
from flushtracker.postgres.server_lacks import ServerLack

_UNKNOWN: Final = "?"
_IDENTIFIER: Final = re.compile('"(?:[^"]|"")*"')


def table_lines(candidates: Sequence[Candidate]) -> Iterator[str]:
    """The tables that a shape can be on, in columns, then the others, each with its reasons and statements."""
    ready = [each for each in candidates if not each.reasons]
    if ready:
        yield "Tables:"
        yield from _aligned([("table", "rows", "size", "key", "identity", "partitions"), *map(_cells, ready)])
        for each in ready:
            if each.left_out:
                yield f"  {_typed(each)} without {_listed(each.left_out)}, whose values are names that change"
    refused = [each for each in candidates if each.reasons]
    if refused:
        yield "Refused:"
    for each in refused:
        yield f"  {_typed(each)} ({size_text(each)}): {'; '.join(each.reasons)}"
        yield from statement_lines(each.statements, each.advice, "    ")


def lack_lines(lacks: Iterable[ServerLack]) -> Iterator[str]:
    for lack in lacks:
        then = f"; then {lack.then}" if lack.then and lack.statements else f"; {lack.then}" if lack.then else ""
        yield from statement_lines(lack.statements, f"{lack.fact}{then}", "  ")


def statement_lines(statements: Iterable[str], comment: str, indent: str) -> Iterator[str]:
    """Statements that can be pasted into psql, after a comment on them."""
    if comment:
        yield f"{indent}-- {printable(comment)}"
    for statement in statements:
        yield f"{indent}{printable(_IDENTIFIER.sub(_escaped, statement))};"


def _escaped(identifier: re.Match[str]) -> str:
    """An identifier with escapes of SQL for what a terminal does not show, or shows as a line break."""
    name = identifier[0]
    if name.isprintable():
        return name
    parts = (each if each.isprintable() else f"\\+{ord(each):06X}" for each in name.replace("\\", "\\\\"))
    return f"U&{''.join(parts)}"


def size_text(candidate: Candidate) -> str:
    """The number of rows, the size and the number of partitions, as far as known."""
    table = candidate.table
    if table.no_table:
        return "no table"
    parts = [
        "rows unknown" if table.rows is None else f"about {table.rows:,} rows",
        "size unknown" if table.bytes is None else bytes_text(table.bytes),
        *([f"{table.partitions:,} partition{'' if table.partitions == 1 else 's'}"] if table.is_partitioned else []),
    ]
    return ", ".join(parts)


def _cells(candidate: Candidate) -> tuple[str, ...]:
    table = candidate.table
    return (
        _typed(candidate),
        _UNKNOWN if table.rows is None else f"{table.rows:,}",
        _UNKNOWN if table.bytes is None else bytes_text(table.bytes),
        _listed(candidate.key),
        table.identity,
        f"{table.partitions:,}" if table.is_partitioned else "-",
    )


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _typed(candidate: Candidate) -> str:
    return printable(typed_name(candidate.name))


def _listed(names: Iterable[str]) -> str:
    return printable(", ".join(names))
