"""Rewrites a ``where`` so that the server can evaluate it with only ``pg_catalog`` in its ``search_path``.

Columns are quoted, because a database in an encoding of single bytes folds letters outside ASCII, too. A cast to an
enum gets the type's schema.
"""

from collections.abc import Iterator

from flushtracker.shapes.item_key import quoted
from flushtracker.shapes.where.syntax import parse
from flushtracker.wal.changes import Relation


def server_text(where: str, relation: Relation) -> str:
    """``where``, which must be valid for ``relation``, with columns quoted and enums qualified.

    An unqualified enum name refers to a column's type (:meth:`~.operands.Operands.enum`), in whatever schema. The text
    may end in a comment.
    """
    text = where
    for start, end, name in sorted(_names(where, relation), reverse=True):
        text = f"{text[:start]}{name}{text[end:]}"
    return text


def _names(where: str, relation: Relation) -> Iterator[tuple[int, int, str]]:
    """The start and end of each name to rewrite for the server, and its replacement."""
    enums = {column.user_type.enum for column in relation.columns if column.user_type is not None}
    schemas = {enum.name: enum.schema for enum in enums if enum is not None}
    for span in parse(where).names:
        if not span.is_type:
            yield span.start, span.end, quoted(span.name)
        elif span.name in schemas:
            yield span.start, span.end, f"{quoted(schemas[span.name])}.{quoted(span.name)}"
