"""Sizes and durations as people write them."""

import pytest

from flushtracker.config.units import BYTES_FORM, DURATION_FORM, parse_bytes, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("7 kB", 7_000),
        ("512MB", 512_000_000),
        (" 5  GB ", 5_000_000_000),
        ("2.5 TB", 2_500_000_000_000),
        ("1 KiB", 1 << 10),
        ("1.5 MiB", 3 << 19),
        ("5GiB", 5 << 30),
        ("1 TiB", 1 << 40),
    ],
)
def test_size_has_a_decimal_or_a_binary_unit(text: str, size: int) -> None:
    """A space before the unit is optional, and so is a fraction."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "5", "GB", "0 GB", "0.0001 B", "-1 GB", "5 gb", "5 Gb", "5 GB!", "5,0 GB", "٥ GB"]
)
def test_malformed_size_is_refused(text: str) -> None:
    """A number without its unit could mean anything, and Gb are bits."""
    with pytest.raises(ValueError, match="size") as caught:
        parse_bytes(text)
    assert str(caught.value) == f"size {text!r} is not {BYTES_FORM}"


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("10m", 600_000), ("10 min", 600_000), ("6h", 21_600_000), ("1 d", 86_400_000)]
)
def test_duration_may_have_a_short_unit(text: str, ms: int) -> None:
    """As on a command line, where a space needs quotes."""
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["10", "m", "0m", "1.5h", "10M", "10 months", "٥m"])
def test_malformed_duration_is_refused(text: str) -> None:
    """M could be months."""
    with pytest.raises(ValueError, match="duration") as caught:
        parse_duration_ms(text)
    assert str(caught.value) == f"duration {text!r} is not {DURATION_FORM}"
