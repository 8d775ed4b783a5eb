"""``yaml_text``: whatever a text has, a reader of configuration files takes it for the same text."""

from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flushtracker.config.strict_yaml import read_yaml
from flushtracker.config.yaml_text import yaml_text

# YAML has no text with a NUL or half of a character, and neither does PostgreSQL.
_TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(_TEXTS)
@example("no")
@example("${HOME} $${HOME} $$${")
@example("\ufeff\x85\u2028 \\n\t\"'")
@example("12")
@example("- a: #b")
def test_a_text_is_read_back_as_it_was(text: str) -> None:
    """As a value of a mapping and in a list on one line."""
    content = f"a: {yaml_text(text)}\nb: [{yaml_text(text)}, {yaml_text(f'{text}x')}]\n".encode()
    root = read_yaml(Path("x.yaml"), content=content)
    assert root.text("a", empty=True).value == text
    assert [each.value for each in root.optional_texts("b") or ()] == [text, f"{text}x"]


@pytest.mark.parametrize("text", ["public.orders", "data", "shapes.d", "order_lines"])
def test_a_plain_text_stays_plain(text: str) -> None:
    """So that people read it easily."""
    assert yaml_text(text) == text
