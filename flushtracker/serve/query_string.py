"""The parameters of a request, from its query string: each once, percent-encoded UTF-8, or the request is refused.

A gatekeeper in front parses the same text, perhaps by other rules. So anything ambiguous is refused: a repeated
parameter, even in another encoding, one without a value, an encoding that is incomplete or not UTF-8, and control
characters.
"""

import re
from typing import Final

from flushtracker.serve.refusals import BadRequestError

_MOST_PARAMETERS: Final = 200
_ENCODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_BROKEN: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROLS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def parse_query(query: bytes) -> dict[str, str]:
    """The parameters by name; raises ``BadRequestError``.

    >>> parse_query(b"table=items&where=a+%3D+%27x%27")
    {'table': 'items', 'where': "a = 'x'"}
    """
    found: dict[str, str] = {}
    parts = query.split(b"&") if query else []
    if len(parts) > _MOST_PARAMETERS:
        raise BadRequestError(f"the query has more than {_MOST_PARAMETERS} parameters")
    for part in parts:
        if not part:
            continue
        encoded, equals, value = part.partition(b"=")
        name = _decoded(encoded)
        if not name:
            raise BadRequestError("the query has a parameter without a name")
        if not equals:
            raise BadRequestError("the query has a parameter without =")
        if name in found:
            raise BadRequestError("the query has a parameter twice")
        found[name] = _decoded(value)
    return found


def _decoded(text: bytes) -> str:
    if _BROKEN.search(text):
        raise BadRequestError("the query has a % that is not followed by two hexadecimal digits")
    try:
        decoded = _ENCODED.sub(lambda found: bytes([int(found[1], 16)]), text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        # The cause is dropped because it has the text.
        raise BadRequestError("the query is not UTF-8") from None
    if _CONTROLS.search(decoded):
        raise BadRequestError("the query has a control character")
    return decoded
