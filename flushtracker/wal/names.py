"""What a name may contain: sources and shape ids become keys of records, and fields of log lines."""

from flushtracker.errors import printable


def is_usable_name(name: str) -> bool:
    """Whether a name is not empty and has neither control characters nor line breaks.

    >>> is_usable_name("users-eu"), is_usable_name("naïve name 🙂"), is_usable_name("a\\nb"), is_usable_name("")
    (True, True, False, False)
    """
    return name != "" and printable(name) == name
