"""LSNs as text and as numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.wal.lsn import MAX_LSN, format_lsn, parse_lsn


@given(st.integers(0, MAX_LSN))
def test_parse_reads_what_format_writes(lsn: int) -> None:
    """They are inverses over all 64 bits."""
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize(("lsn", "text"), [(0, "0/0"), (97500059720, "16/B374D848"), (MAX_LSN, "FFFFFFFF/FFFFFFFF")])
def test_text_is_that_of_postgresql(lsn: int, text: str) -> None:
    """Two hexadecimal halves in upper case, without leading zeros."""
    assert format_lsn(lsn) == text


def test_parse_accepts_lower_case_and_leading_zeros() -> None:
    """PostgreSQL accepts both, so people write both."""
    assert parse_lsn("0016/b374d848") == 97500059720


@pytest.mark.parametrize(
    "text", ["", "/", "16", "16/", "/1", "1/2/3", "G/0", "123456789/0", "0x1/2", " 1/2", "1/2\n", "١/0"]
)
def test_parse_refuses_other_text(text: str) -> None:
    """Only two groups of one to eight hexadecimal digits are accepted; the message shows the text."""
    with pytest.raises(ValueError, match="is not of the form 16/B374D848"):
        parse_lsn(text)


@given(st.text())
def test_parse_raises_nothing_but_value_error(text: str) -> None:
    """Any text is refused, or parsed to an LSN that survives a round trip."""
    try:
        lsn = parse_lsn(text)
    except ValueError:
        return
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize("lsn", [-1, MAX_LSN + 1])
def test_format_refuses_numbers_out_of_range(lsn: int) -> None:
    """Negative, or of more than 64 bits."""
    with pytest.raises(ValueError, match=f"LSN {lsn} is outside 0 to {MAX_LSN}"):
        format_lsn(lsn)
