"""What a name may contain: sources and shape ids become keys of records, and fields of log lines."""

import re
from typing import Final

# Unicode's control characters and line breaks (categories Cc, Zl and Zp), and what no UTF-8 text can hold. Not all that
# cannot be printed: which characters these are differs between versions of Unicode, and so between readers of a stream.
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_usable_name(name: str) -> bool:
    """Whether a name is not empty and has neither control characters nor line breaks.

    >>> is_usable_name("users-eu"), is_usable_name("naïve name 🙂"), is_usable_name("a\\nb"), is_usable_name("")
    (True, True, False, False)
    """
    return name != "" and _UNUSABLE.search(name) is None
