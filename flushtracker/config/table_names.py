"""Names of tables as typed in configuration files."""

import re
from typing import Final

_PART: Final = r'"(?:[^"\x00]|"")+"|[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*'
_TABLE: Final = re.compile(rf"(?P<schema>{_PART})\.(?P<name>{_PART})")
TABLE_FORM: Final = 'of the form schema.name, with double quotes where PostgreSQL needs them: "My Schema".name'

# PostgreSQL folds only ASCII letters in multibyte encodings.
_FOLD: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def parse_table(text: str) -> tuple[str, str]:
    """Parse ``schema.name``; each part is folded to lower case unless it is in double quotes.

    >>> parse_table('Public."Line/No"')
    ('public', 'Line/No')

    Raises:
        ValueError: the text does not have exactly two parts, or a part needs quotes.
    """
    found = _TABLE.fullmatch(text)
    if found is None:
        raise ValueError(f"table {text!r} is not {TABLE_FORM}")
    return _unquoted(found["schema"]), _unquoted(found["name"])


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_FOLD)
