"""Edits of a list in a YAML file: only the bytes of the edited item change."""

from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.config.yaml_items import items_of, with_items, without_item
from flushtracker.errors import ConfigError

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
    return without_item(text, FILE, "shapes", index)


def plus(text: str, source: str) -> str:
    return with_items(text, FILE, "shapes", items_of(source, "new.yaml", "shapes"))


def test_an_item_goes_with_its_own_comments_and_nothing_else() -> None:
    """A comment at the level of the dashes belongs to what follows it, as the one about b."""
    assert without(TEXT, 0) == TEXT.replace(
        "  - id: a        # the first\n    table: public.t\n    # flush: {bytes: 1}\n", ""
    )
    assert without(TEXT, 1) == TEXT.replace("  - {id: b, table: public.t}\n", "")
    assert yaml.safe_load(without(TEXT, 2)) == {
        "shapes": [{"id": "a", "table": "public.t"}, {"id": "b", "table": "public.t"}],
        "allow_removing": 1,
    }


def test_the_last_item_leaves_an_empty_list() -> None:
    """A key without a value would be null."""
    text = "shapes: # mine\n- id: a\n  table: public.t\n# after\n"
    assert without(text, 0) == "shapes: [] # mine\n# after\n"
    assert plus(without(text, 0), "id: b\ntable: public.u") == (
        "shapes: # mine\n  - id: b\n    table: public.u\n# after\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "shapes:\n- id: d\n  columns:\n  - x\n  - y   # both\n",
        "- id: d\n  columns:\n  - x\n  - y   # both\n",
        "id: d\ncolumns:\n- x\n- y   # both\n",
    ],
)
def test_items_are_indented_as_the_list_is(source: str) -> None:
    """Whatever form they come in: a list under its key, a list alone, or one item."""
    added = "  - id: d\n    columns:\n    - x\n    - y   # both\n"
    assert plus(TEXT, source) == TEXT.replace("\n  # the end", f"\n{added}  # the end")
    assert (
        plus("shapes:\n- id: a", source) == f"shapes:\n- id: a\n{added.replace('    ', '  ').replace('  - id', '- id')}"
    )


def test_a_list_in_brackets_is_not_edited() -> None:
    """An item in it has no lines of its own."""
    with pytest.raises(ConfigError, match=r"shapes.yaml line 1: the list has items without a line '- …' of their own"):
        without("shapes: [{id: a}, {id: b}]\n", 0)
    with pytest.raises(ConfigError, match="items without a line"):
        plus("shapes: [{id: a}]\n", "id: b")


def test_a_file_of_something_else_is_refused() -> None:
    """The message names the file that has it."""
    with pytest.raises(ConfigError, match=r"new.yaml line 1: expected the list shapes"):
        plus(TEXT, "just text")
    with pytest.raises(ConfigError, match=r"shapes.yaml line 1: has no list shapes"):
        plus("other: 1\n", "id: b")


_VALUES = st.one_of(
    st.text("ab#:-'\"{}[] \\|>\u00e9", max_size=8),
    st.lists(st.text("xy #", min_size=1, max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["p", "q"]), st.text("x\n ", max_size=6), max_size=2),
    st.text("a \n#-", max_size=12),
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
    text = "shapes:\n" + "".join(
        f"# heading {number}\n{yaml.safe_dump([item], **style)}" for number, item in enumerate(items)
    )
    index = data.draw(st.integers(0, len(items) - 1))
    assert yaml.safe_load(without(text, index)) == {"shapes": items[:index] + items[index + 1 :]}
    assert yaml.safe_load(plus(text, yaml.safe_dump({"shapes": more}, **style))) == {"shapes": items + more}
    rest = without(text, index).splitlines()
    assert [line for line in rest if line.startswith("# heading")] == [f"# heading {n}" for n in range(len(items))]
