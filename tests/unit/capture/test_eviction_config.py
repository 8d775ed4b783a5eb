"""``capture.evict``: what it accepts, and what it refuses."""

from pathlib import Path

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.eviction.config import EvictionRule, RetainedLimit
from flushtracker.errors import ConfigError
from tests.support.config_file import merged, write_config
from tests.support.fake_world import CONFIG


def rule(tmp_path: Path, evict: object, **changes: object) -> EvictionRule | None:
    capture = {} if evict is None else {"evict": evict}
    settings = merged(CONFIG, {"shapes": "s.yaml", "capture": capture, "status": {}, **changes})
    return load_capture_config(write_config(tmp_path / "capture.yaml", settings)).eviction


def test_nothing_is_evicted_without_the_key(tmp_path: Path) -> None:
    """A removal is final, so it takes a decision."""
    assert rule(tmp_path, None) is None


def test_limits_are_durations_sizes_and_shares(tmp_path: Path) -> None:
    """The issue's example, and one with every key."""
    example = rule(tmp_path, {"remove_after": "6 hours", "or_when_retained": "50 GB"})
    assert example == EvictionRule(6 * 3_600_000, RetainedLimit(bytes=50 * 10**9), 60_000, 16 << 20, 1)
    every = {
        "remove_after": "2 days",
        "or_when_retained": "70 %",
        "at_most_per_hour": 4,
        "at_least": "1 GiB",
        "grace": "5 minutes",
    }
    assert rule(tmp_path, every) == EvictionRule(2 * 86_400_000, RetainedLimit(share=0.7), 300_000, 1 << 30, 4)
    assert rule(tmp_path, {"or_when_retained": "5%"}) == EvictionRule(None, RetainedLimit(share=0.05))


@pytest.mark.parametrize(
    ("evict", "message"),
    [
        ({"at_most_per_hour": 2}, "evict has neither remove_after nor or_when_retained"),
        ({"or_when_retained": "100 %"}, 'evict.or_when_retained is .* or a share such as "80 %"'),
        ({"or_when_retained": "50"}, "evict.or_when_retained is '50', not a number above zero and a unit"),
        ({"remove_after": "0 hours"}, "evict.remove_after is '0 hours', not a number above zero"),
        ({"remove_after": "1 hour", "at_most_per_hour": 0}, "evict.at_most_per_hour is '0'"),
        ({"remove_after": "1 hour", "atmost": 1}, "evict.atmost is not a known key"),
    ],
)
def test_refusals_name_the_key(tmp_path: Path, evict: object, message: str) -> None:
    """And say what to write instead."""
    with pytest.raises(ConfigError, match=f"capture.{message}"):
        rule(tmp_path, evict)


@pytest.mark.parametrize("off", ["status", "track"])
def test_nothing_can_be_evicted_without_the_status_of_the_tracking_job(tmp_path: Path, off: str) -> None:
    """Only the job knows which shape holds the slot."""
    with pytest.raises(ConfigError, match=f"capture.evict needs the status of the tracking job, but {off} is false"):
        rule(tmp_path, {"remove_after": "6 hours"}, **{off: False})


def test_a_share_means_nothing_to_a_server_without_a_limit() -> None:
    """And a lost slot's negative rest counts as none."""
    limit = RetainedLimit(share=0.8)
    assert limit.reached(10**12, None) is None
    assert limit.reached(80, 20) is None
    assert limit.reached(81, 19) == "80 % of the server's max_slot_wal_keep_size"
    assert limit.reached(81, -5) is not None
