"""What a name may contain: source names and shape ids become keys, paths of messages and fields of log lines."""

import re
from typing import Final

# Unicode's control characters and line breaks (categories Cc, Zl and Zp), which could forge a log line, and half
# surrogate pairs, which no UTF-8 text can hold.
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_usable_name(name: str) -> bool:
    """Whether a name is not empty and has neither control characters nor line breaks.

    >>> is_usable_name("users-eu"), is_usable_name("naïve name 🙂"), is_usable_name("a\\nb"), is_usable_name("")
    (True, True, False, False)
    """
    return bool(name) and _UNUSABLE.search(name) is None
