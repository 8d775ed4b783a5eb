"""Edits of the text of a shapes file: values, comments, order and quotes stay; only their notation may change."""

import random
import re
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import ConfigError
from flushtracker.operate.shapes.shapes_yaml import ShapesYaml

FILE: Final = "shapes.yaml"
TEXT: Final = """\
# The heading.
shapes:
  # about a
  - id: a        # the first
    table: public.t
    # flush: {bytes: 1}
  # about b

  - {id: b, table: public.t}

  - id: c
    where: |
      x = 1
      # not a comment

  # the end
allow_removing: 1   # why
"""


def without(text: str, index: int) -> str:
    edited = ShapesYaml(text, FILE)
    edited.remove(index)
    return edited.text()


def plus(text: str, source: str) -> str:
    edited = ShapesYaml(text, FILE)
    edited.add(ShapesYaml(source, "new.yaml"))
    return edited.text()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('"\\x41"', '"A"'),
        ("!!str 1", "!!str 1"),
        ("", ""),
        ("''", "''"),
        ("{a: , b: ~}", "{a: null, b: ~}"),
        (">\n    x\n    y\n\n    z", ">\n    x\n    y\n\n    z"),
        ("|+   # why\n    x\n", "|+   # why\n    x\n"),
        ("&a\n    x: 1   # why\n  v: *a", "&a\n    x: 1   # why\n  v: *a"),
    ],
)
def test_a_notation_is_kept_or_written_in_another_way(value: str, written: str) -> None:
    """Whatever it is, the values are the same."""
    text = f"shapes:\n- id: a\n  w: {value}\n# about b\n- id: b\n"
    kept = f"shapes:\n- id: a\n  w: {written}\n# about b\n- id: b\n- id: d\n"
    assert plus(text, "id: d") == kept.replace("w: \n", "w:\n")
    assert yaml.safe_load(kept)["shapes"][:2] == yaml.safe_load(text)["shapes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shapes:\n- id: a\n  columns: [x,  # why\n    y]\n", ": the comment '# why' cannot be kept; edit the file by"),
        ("shapes:\n- id: 'a\x7f'\n", " line 2: not YAML: it contains the control character U+007F"),
        *(
            (f"shapes:\n- id: {value}\n", ": ruamel.yaml cannot read it: ")
            for value in ("!!int x", "!!bool x", "!!set x", "a\n  id: a")
        ),
        ("shapes: [{id: a}, {id: b}]\n", " line 1: the list has items without a line '- …' of their own"),
        ("other: 1\n", " line 1: has no list shapes"),
        ("shapes: x\n", " line 1: has no list shapes"),
    ],
)
def test_a_text_that_would_lose_something_is_refused(text: str, message: str) -> None:
    """The message names the file, and the comment or the line."""
    with pytest.raises(ConfigError, match=f"^{FILE}{re.escape(message)}"):
        plus(text, "id: d")


def test_a_source_of_something_else_is_refused() -> None:
    """The message names the file that has it."""
    with pytest.raises(ConfigError, match=r"new.yaml line 1: expected the list shapes"):
        plus(TEXT, "just text")
    with pytest.raises(ConfigError, match=r"new.yaml line 1: expected the list shapes"):
        plus(TEXT, "shapes: {id: a}")


_VALUES = st.one_of(
    st.text("ab#:-'\"{}[] \\|>\u00e9", min_size=1, max_size=8),
    st.lists(st.text("xy #", min_size=1, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["p", "q"]), st.text("x ", min_size=1, max_size=6), max_size=2),
    st.text("a #-", min_size=1, max_size=12),
)
_ITEMS = st.lists(
    st.fixed_dictionaries({"id": st.text("abc", min_size=1, max_size=3)}, optional={"k": _VALUES, "l": _VALUES}),
    min_size=1,
    max_size=4,
)
_STYLES: Final[list[dict[str, Any]]] = [{}, {"default_flow_style": None}, {"default_style": '"'}]


@given(items=_ITEMS, more=_ITEMS, style=st.sampled_from(_STYLES), data=st.data())
def test_any_list_that_yaml_writes_is_edited_exactly(
    items: list[dict[str, object]], more: list[dict[str, object]], style: dict[str, Any], data: st.DataObject
) -> None:
    """Removing an item, or adding some, gives what the same edit of the values gives."""
    dump: dict[str, Any] = {"width": 1000, "allow_unicode": True, **style}
    text = "shapes:\n" + "".join(
        f"# heading {number}\n{yaml.safe_dump([item], **dump)}" for number, item in enumerate(items)
    )
    index = data.draw(st.integers(0, len(items) - 1))
    assert yaml.safe_load(without(text, index)) == {"shapes": items[:index] + items[index + 1 :]}
    assert yaml.safe_load(plus(text, yaml.safe_dump({"shapes": more}, **dump))) == {"shapes": items + more}
    rest = without(text, index).splitlines()
    assert [line for line in rest if line.startswith("# heading")] == [f"# heading {n}" for n in range(len(items))]


_ANY_TEXT = st.text("ab#:-'\"{}[] \\|>\u00e9\n", max_size=12)
_ANY_ITEMS = st.lists(
    st.fixed_dictionaries(
        {"id": st.text("abc", min_size=1, max_size=3)},
        optional={"k": _ANY_TEXT, "l": st.lists(_ANY_TEXT, max_size=3), "m": st.dictionaries(_ANY_TEXT, _ANY_TEXT)},
    ),
    min_size=1,
    max_size=3,
)


@given(items=_ANY_ITEMS, more=_ANY_ITEMS, style=st.sampled_from(_STYLES))
def test_any_text_is_edited_exactly_or_refused(
    items: list[dict[str, object]], more: list[dict[str, object]], style: dict[str, Any]
) -> None:
    """Also with empty values, escapes and values on several lines, which ruamel.yaml may write in another way."""
    text, source = yaml.safe_dump({"shapes": items}, **style), yaml.safe_dump({"shapes": more}, **style)
    try:
        assert yaml.safe_load(plus(text, source)) == {"shapes": items + more}
        assert yaml.safe_load(without(text, 0)) == {"shapes": items[1:]}
    except ConfigError as error:
        assert "edit the file by hand" in str(error)  # noqa: PT017  either is right


class Author:
    """Writes shapes files as people do: in any indentation and style, with comments wherever YAML allows a line."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  a seeded choice of texts
        self._count = 0

    def shapes(self) -> tuple[list[str], list[str]]:
        """The lines above each shape, and its own; the last of the first are those at the end of the file."""
        dash, gap = self._random.choice([0, 2, 4]), self._random.choice([1, 1, 3])
        shapes = [self.shape(dash, gap) for _ in range(self._random.randint(1, 4))]
        above = ["".join(self._lines_above(dash)) for _ in shapes]
        head = f"shapes:{self._comment(0.3)}\n"
        top = "".join(self._random.choice(["", f"#{self._word()}\n"]) + self._random.choice(["", "---\n"]))
        tail = self._random.choice(["", f"\n#{self._word()}\n", f"allow_removing: 0{self._comment(0.5)}\n"])
        return [top + head + above[0], *above[1:], tail], shapes

    def shape(self, dash: int, gap: int) -> str:
        """One shape, with comments at the end of its lines, between them and below them."""
        if self._random.random() < 0.1:
            return f"{' ' * dash}-{' ' * gap}{{id: {self._word()}, columns: [a]}}{self._comment(0.3)}\n"
        indent = " " * (dash + 1 + gap)
        lines = [f"{' ' * dash}-{' ' * gap}id: {self._word()}{self._comment(0.3)}\n"]
        for key in ["table", "where", "flush"][: self._random.randint(0, 3)]:
            value = self._value(indent)
            lines.append(f"{indent}{key}:{value}" + ("" if value.endswith("\n") else f"{self._comment(0.3)}\n"))
            if self._random.random() < 0.2:
                lines.append(f"{indent}#{self._word()}\n")
        return "".join(lines)

    def _value(self, indent: str) -> str:
        return self._random.choice(
            [
                *(" public.t", " 'it''s'", ' "# none"', " [a, b]", ' {bytes: 1, interval: "1 s"}', " id < 5", " 0x1F"),
                *(f" 'two\n{indent}  lines'", f" two\n{indent}  lines"),
                *(f" |\n{indent}  x = 1\n{indent}  # none\n", f" >-\n{indent}  folded\n{indent}  text\n"),
                f"\n{indent}    bytes: 1{self._comment(0.5)}\n{indent}    interval: 1{self._comment(0.5)}\n",
                f"\n{indent}- a{self._comment(0.5)}\n{indent}- [b]{self._comment(0.5)}\n",
            ]
        )

    def _lines_above(self, dash: int) -> list[str]:
        count = self._random.choice([0, 0, 1, 2])
        return [self._random.choice(["\n", f"{' ' * dash}#{self._word()}\n"]) for _ in range(count)]

    def _comment(self, chance: float) -> str:
        return f"{' ' * self._random.randint(1, 5)}#{self._word()}" if self._random.random() < chance else ""

    def _word(self) -> str:
        self._count += 1
        return f"w{self._count}."


def comments(text: str) -> list[str]:
    return sorted(re.findall(r"#w\d+\.", text))


@pytest.mark.parametrize("seed", range(150))
def test_no_comment_is_lost(seed: int) -> None:
    """A shape that is added brings all its comments; one that is removed takes its own, and no other."""
    author = Author(seed)
    above, shapes = author.shapes()
    text = "".join(above[index] + shape for index, shape in enumerate(shapes)) + above[-1]
    new = author.shape(dash=2, gap=1)
    parsed, parsed_new = yaml.safe_load(text), yaml.safe_load(new)
    more = plus(text, new)
    assert yaml.safe_load(more) == {**parsed, "shapes": parsed["shapes"] + parsed_new}
    assert comments(more) == comments(text + new)
    for index, shape in enumerate([*shapes, new]):
        rest = without(more, index)
        kept = [item for place, item in enumerate(parsed["shapes"] + parsed_new) if place != index]
        assert yaml.safe_load(rest) == {**parsed, "shapes": kept}
        assert comments(rest) == sorted(set(comments(more)) - set(comments(shape)))
