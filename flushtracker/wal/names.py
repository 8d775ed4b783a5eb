"""The characters allowed in the names of sources, shapes and writers, which become record keys and log fields."""

import re
from typing import Final

# Unicode's control characters and line breaks (categories Cc, Zl and Zp), and surrogates, which UTF-8 cannot encode.
# Other unprintable characters are allowed: which ones these are depends on the version of Unicode that a reader has.
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


LOG_WRITER: Final = "log"
"""The writer name of ``flushtracker write``, the default for shapes."""
MAX_WRITER_LENGTH: Final = 63
MAX_ID_LENGTH: Final = 200


def is_usable_name(name: str) -> bool:
    """Whether a name is not empty and has neither control characters nor line breaks.

    >>> is_usable_name("users-eu"), is_usable_name("naïve name 🙂"), is_usable_name("a\\nb"), is_usable_name("")
    (True, True, False, False)
    """
    return name != "" and _UNUSABLE.search(name) is None
