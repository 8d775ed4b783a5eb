"""``capture.evict``: when capture evicts a shape that holds the slot's WAL. Off without the key.

An eviction is permanent, so each limit errs towards keeping the shape.
"""

import re
from dataclasses import dataclass
from typing import Final

from flushtracker.config.one_file import OneFile
from flushtracker.config.strict_yaml import YamlMapping

_SHARE: Final = re.compile(r"(?P<percent>[1-9][0-9]?) *%")
_MOST_PER_HOUR: Final = 60

MOST_OF_SAFE_WAL: Final = 0.8
"""Capture acts at this share of the WAL that the server allows, at the latest: a lost slot ends every shape."""


@dataclass(frozen=True, slots=True)
class RetainedLimit:
    """How much WAL the slot may retain: a number of bytes, or a share of what the server allows."""

    bytes: int | None = None
    share: float | None = None

    def reached(self, retained_bytes: int, safe_wal_bytes: int | None) -> str | None:
        """The name of the limit that ``retained_bytes`` exceeds, or ``None``.

        ``safe_wal_bytes`` is how much more the server allows, ``None`` without a limit. With one, a limit in bytes is
        lowered to :data:`MOST_OF_SAFE_WAL` of it.

        >>> limit = RetainedLimit(bytes=50)
        >>> limit.reached(50, None), limit.reached(51, None), limit.reached(41, 9)
        (None, 'capture.evict.or_when_retained', "80 % of the server's max_slot_wal_keep_size")
        """
        if self.bytes is not None and retained_bytes > self.bytes:
            return "capture.evict.or_when_retained"
        if safe_wal_bytes is None:
            return None
        share = MOST_OF_SAFE_WAL if self.share is None else self.share
        if retained_bytes > share * (retained_bytes + max(safe_wal_bytes, 0)):
            return f"{share:.0%} of the server's max_slot_wal_keep_size".replace("%", " %")
        return None


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """When to evict the shape that holds the most WAL; unset limits are ``None``.

    ``remove_after_ms`` applies when it was seen pending without progress for longer, ``retained`` when the slot retains
    more. In both cases the shape must hold at least ``at_least_bytes``, and must have held the ack of a healthy job for
    ``grace_ms``. ``if_writer_is_down``: even if other shapes stopped at the same moment.
    """

    remove_after_ms: int | None
    retained: RetainedLimit | None
    grace_ms: int = 60_000
    at_least_bytes: int = 16 << 20
    at_most_per_hour: int = 1
    if_writer_is_down: bool = False


def read_eviction_rule(file: OneFile) -> EvictionRule | None:
    """``capture.evict``, ``None`` if the file lacks it; raises ``ConfigError``."""
    if "capture.evict" not in file.lines:
        return None
    capture, evict, default = file.section("capture"), file.section("capture.evict"), EvictionRule(None, None)
    if "status" in file.off or "track" in file.off:
        off = "status" if "status" in file.off else "track"
        fact = f"needs the status of the tracking job, but {off} is false: only the job knows which shape holds"
        raise capture.error("evict", fact)
    if "remove_after" not in evict and "or_when_retained" not in evict:
        raise capture.error("evict", "has neither remove_after nor or_when_retained; leave it out to evict no shape")
    per_hour = evict.optional_integer("at_most_per_hour", at_least=1, at_most=_MOST_PER_HOUR)
    return EvictionRule(
        evict.optional_duration_ms("remove_after"),
        _retained(evict),
        evict.optional_duration_ms("grace") or default.grace_ms,
        evict.optional_bytes("at_least") or default.at_least_bytes,
        per_hour or default.at_most_per_hour,
        evict.optional_boolean("if_writer_is_down") or False,
    )


def _retained(evict: YamlMapping) -> RetainedLimit | None:
    text = evict.optional_text("or_when_retained")
    if text is None:
        return None
    if (found := _SHARE.fullmatch(text.value.strip())) is not None:
        return RetainedLimit(share=int(found["percent"]) / 100)
    or_else = ', or a share such as "80 %" of what the server allows'
    return RetainedLimit(bytes=evict.optional_bytes("or_when_retained", or_else))
