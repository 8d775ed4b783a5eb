"""``evict`` in capture's configuration: what it accepts, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.eviction.config import EvictionRule, RetainedLimit
from flushtracker.errors import ConfigError
from tests.support.fake_world import CONFIG

STATUS = {"listen": "127.0.0.1:9465", "peers": ["http://127.0.0.1:9464"]}


def rule(tmp_path: Path, evict: object, status: object = STATUS) -> EvictionRule | None:
    path = tmp_path / "capture.yaml"
    extra = {"shapes": "s.yaml", "acks": "acks", "evict": evict, "status": status}
    path.write_text(yaml.safe_dump(CONFIG | {key: value for key, value in extra.items() if value is not None}))
    return load_capture_config(path).eviction


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
    ("evict", "status", "message"),
    [
        ({"remove_after": "6 hours"}, None, "evict needs status.peers, with the URL of the tracking job's status"),
        ({"remove_after": "6 hours"}, {"listen": "127.0.0.1:0"}, "evict needs status.peers"),
        ({"at_most_per_hour": 2}, STATUS, "evict has neither remove_after nor or_when_retained"),
        ({"or_when_retained": "100 %"}, STATUS, 'evict.or_when_retained is .* or a share such as "80 %"'),
        ({"or_when_retained": "50"}, STATUS, "evict.or_when_retained is '50', not a number above zero and a unit"),
        ({"remove_after": "0 hours"}, STATUS, "evict.remove_after is '0 hours', not a number above zero"),
        ({"remove_after": "1 hour", "at_most_per_hour": 0}, STATUS, "evict.at_most_per_hour is '0'"),
        ({"remove_after": "1 hour", "atmost": 1}, STATUS, "evict.atmost is not a known key"),
    ],
)
def test_refusals_name_the_key(tmp_path: Path, evict: object, status: object, message: str) -> None:
    """And say what to write instead."""
    with pytest.raises(ConfigError, match=message):
        rule(tmp_path, evict, status)


def test_a_share_means_nothing_to_a_server_without_a_limit() -> None:
    """And a lost slot's negative rest counts as none."""
    limit = RetainedLimit(share=0.8)
    assert limit.reached(10**12, None) is None
    assert limit.reached(80, 20) is None
    assert limit.reached(81, 19) == "80 % of the server's max_slot_wal_keep_size"
    assert limit.reached(81, -5) is not None
