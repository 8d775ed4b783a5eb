"""Where Kafka and the storage are, as texts of the configuration and of options that have no obvious mistake."""

import re
from typing import Final

_BROKER: Final = re.compile(r"(?:[A-Z_]+://)?(?:\[[^\[\]\s]+\]|[^\[\]\s:/]+):[0-9]{1,5}")
_NO_URI: Final = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*:(?!//)")
BROKERS_FORM: Final = "brokers with their ports, such as broker:9092, with commas between them"
STORAGE_FORM: Final = "a folder, or a URI such as s3://bucket/orders"


def parse_brokers(text: str) -> str:
    """The text, if each broker has a port, without which Spark's client takes none; raises ``ValueError``.

    >>> parse_brokers("one:9092, [::1]:9092")
    'one:9092, [::1]:9092'
    """
    if all(_BROKER.fullmatch(each.strip()) for each in text.split(",")):
        return text
    raise ValueError(f"{text!r} is not {BROKERS_FORM}")


def parse_storage(text: str) -> str:
    """The text, unless it only begins as a URI does, and would be a folder of that name; raises ``ValueError``.

    >>> parse_storage("s3:/bucket")
    Traceback (most recent call last):
    ValueError: 's3:/bucket' is not a folder, or a URI such as s3://bucket/orders
    """
    if text.strip() and not _NO_URI.match(text):
        return text
    raise ValueError(f"{text!r} is not {STORAGE_FORM}")
