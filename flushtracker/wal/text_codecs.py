"""Python's codecs that decode what the server stores exactly as the server converts it to UTF-8.

Most encodings leave codes undefined, which a database stores all the same. The server converts them to nothing: it
refuses the row, or the query. So where there is a codec here, capture takes the stored bytes and decodes them, and only
a value with such a code is lost.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

UTF8: Final = "utf-8"

CODECS: Final[Mapping[str, str]] = {
    # No conversion at all.
    "SQL_ASCII": UTF8,
    **{f"LATIN{number}": f"iso8859-{part}" for number, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), 1)},
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in (5, 6, 7, 8)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "EUC_CN": "gb2312",
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}
"""By PostgreSQL's name of the encoding."""

_BYTES: Final = bytes(range(1, 256))


@cache
def may_lack_characters(encoding: str) -> bool:
    """Whether a database of this encoding may store what the server cannot convert to UTF-8.

    >>> [may_lack_characters(encoding) for encoding in ("UTF8", "LATIN1", "WIN1252", "SQL_ASCII", "EUC_JP")]
    [False, False, True, True, True]
    """
    if encoding == "UTF8":
        return False
    codec = CODECS.get(encoding)
    return codec is None or "\ufffd" in _BYTES.decode(codec, "replace")
