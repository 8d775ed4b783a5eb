"""``Position``: its text, which followers keep and every later release reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import PositionError
from flushtracker.shape_log.position import Position


@given(st.text(min_size=1), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_text_and_position_are_inverses(source: str, tx_offset: int, attempt: int) -> None:
    """Whatever the source is called; its name may contain what separates the parts."""
    position = Position(source, tx_offset, attempt)
    assert Position.parse(str(position)) == position


def test_positions_that_followers_have_kept_are_read_unchanged() -> None:
    """Literal texts, which no change may reinterpret."""
    assert Position.parse("1:0/0:0:a") == Position("a", 0, 0)
    text = "1:16/B374D848:1700000000000000:7301/1/shapes/2"
    assert Position.parse(text) == Position("7301/1/shapes/2", 0x16_B374D848, 1_700_000_000_000_000)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "1:", "0/A+inf", "1:0/A:0:", "1:0/A::a", "1:0/A:-1:a", "1:0/A:²:a", "1:0/A+inf:0:a"),
        *("1:A:0:a", "x:0/A:0:a"),
    ],
)
def test_text_that_is_no_position_is_refused_with_what_to_do(text: str) -> None:
    """As an offset is, which does not tell what is missing from a log."""
    with pytest.raises(
        PositionError, match=r"^position '.*' is not of the form 1:LSN:ATTEMPT:SOURCE.*; continue from "
    ):
        Position.parse(text)


def test_a_position_of_a_later_release_says_so() -> None:
    """Reading it wrongly could lose changes."""
    with pytest.raises(
        PositionError, match=r"^position '2:x' has version 2, and this release reads version 1; read it "
    ):
        Position.parse("2:x")
