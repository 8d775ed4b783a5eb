"""Messages are one line that shows each character as itself, whatever names they quote."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker import errors
from flushtracker.errors import ConfigError, FlushtrackerError, printable
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.wal.names import is_usable_name


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_becomes_printable_once(text: str) -> None:
    """A second time changes nothing, and neither does a text that is printable already."""
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\x1b[2K\x7f", r"a\nb\x1b[2K\x7f"),
        ("\ufeffid", r"\ufeffid"),
        ("users\u202eue-sredro", r"users\u202eue-sredro"),
        ("a\u200bb\u2028\ud800", r"a\u200bb\u2028\ud800"),
        ("naïve 日本 🙂", "naïve 日本 🙂"),
    ],
)
def test_a_character_that_would_not_be_seen_is_escaped_in_every_error(text: str, shown: str) -> None:
    """Control characters, a byte order mark, a change of the writing direction, and what has no width."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FlushtrackerError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert str(kind(f"table {text} is missing")) == f"table {shown} is missing"


def test_an_id_that_reads_like_another_is_usable_and_its_errors_show_how_it_is_spelled(tmp_path: Path) -> None:
    """Only control characters are refused in names, so that emoji and Persian can be spelled."""
    file = tmp_path / "shapes.yaml"
    file.write_text('shapes:\n  - {id: "eu\\ufeff", table: public.users, wherever: x}\n')
    assert is_usable_name("eu\ufeff")
    with pytest.raises(ConfigError) as caught:
        load_shapes(file)
    assert r"shape eu\ufeff: wherever is not a known key" in str(caught.value)
