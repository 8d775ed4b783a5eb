"""Texts of snapshots: COPY's format, and key and value of an insert, against those of the stream's own way."""

from hypothesis import given
from hypothesis import strategies as st

from flushtracker.postgres.copy_text import lines_of, values_of
from flushtracker.shape_log.log_row import item_row
from flushtracker.shape_log.snapshot.item_rows import ItemTexts
from flushtracker.shape_log.snapshot.read_plan import ItemColumns
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.log_items import log_items
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.where.server_text import server_text
from flushtracker.wal.changes import Column, Insert, Relation, UserType
from tests.support.tables import at

NASTY = st.text(st.sampled_from("a\\N\"'/_%,{}\t\n\r\b\f\v\x01\x7f\u2028é😀"), max_size=8)
VALUES = st.one_of(st.none(), st.text(max_size=5).filter(lambda text: "\0" not in text and _is_utf8(text)), NASTY)
NAMES = ("id", 'a"b%s', "größe")
ESCAPES = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def copied(values: list[str | None]) -> bytes:
    """A row as the server's CopyAttributeOutText writes it."""
    texts = (r"\N" if text is None else "".join(ESCAPES.get(each, each) for each in text) for text in values)
    return "\t".join(texts).encode() + b"\n"


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_values_are_read_as_copy_has_written_them(values: list[str | None]) -> None:
    """NULL, an empty text and the text that looks like NULL differ."""
    (line,) = lines_of([copied(values)])
    assert values_of(line) == values


@given(
    st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=5),
    st.sampled_from([None, ("id",), (NAMES[1], "id"), NAMES]),
    st.sampled_from([None, ("id",), NAMES[:2]]),
    st.sampled_from([None, NAMES[::-1]]),
)
def test_items_are_those_that_the_stream_gives(
    rows: list[tuple[str | None, ...]],
    primary_key: tuple[str, ...] | None,
    columns: tuple[str, ...] | None,
    selected: tuple[str, ...] | None,
) -> None:
    """With all columns or some, and keys of one or several, whatever names and values contain.

    Other shapes may need more columns of the rows, in another order.
    """
    relation = Relation(1, "public", 't"s', "full", tuple(Column(name, 25, is_key=True) for name in NAMES))
    shape = Shape(ShapeDefinition("s", relation.table, columns, primary_key=primary_key)).bind(relation)
    texts = ItemTexts(ItemColumns(shape.columns, shape.key_columns, shape.key_prefix), selected or shape.columns)
    inserts = [Insert(relation, at(0), dict(zip(NAMES, row, strict=True))) for row in rows]
    expected = [item_row(log_items(shape, insert)[0], 0, 0) for insert in inserts]
    lines = lines_of([copied([insert.new[name] for name in selected or shape.columns]) for insert in inserts])
    assert [*zip(*texts.of(lines), strict=True)] == [(row.key, row.value) for row in expected]


def test_columns_are_quoted_and_casts_to_enums_get_their_schema() -> None:
    """In both spellings and as arrays, but not what has a schema, is built in, or only looks like a cast."""
    moods = UserType(16_400, "My s", "mood", "enum", ("ok",))
    quoted = UserType(16_402, "public", 'The "kind"', "enum", ("x",))
    columns = (
        Column("feel", 16_400, user_type=moods),
        Column("feels", 16_401, user_type=UserType(16_401, "My s", "_mood", "array", inner=moods)),
        Column("kind", 16_402, user_type=quoted),
    )
    relation = Relation(1, "public", "t", "full", columns)
    where = """ "größe 😀" = 'é::mood' AND feel = 'ok'::Mood AND feels @> CAST('{ok}' AS mood[]) AND mood = 'x'::text
        AND kind = 'x' :: "The ""kind\""" OR feel = 'ok'::"My s".mood -- 'ok'::mood"""
    assert server_text(where, relation) == (
        """ "größe 😀" = 'é::mood' AND "feel" = 'ok'::"My s"."mood" AND "feels" @> CAST('{ok}' AS "My s"."mood"[]) """
        """AND "mood" = 'x'::text
        AND "kind" = 'x' :: "public"."The ""kind\""" OR "feel" = 'ok'::"My s".mood -- 'ok'::mood"""
    )
    plain = Relation(1, "public", "t", "full", (Column("id", 20),))
    assert server_text("Id = 1 AND ÄÖ = 2", plain) == '"id" = 1 AND "ÄÖ" = 2'
    assert server_text("id = ';' -- all", plain) == "\"id\" = ';' -- all"
