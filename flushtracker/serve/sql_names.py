"""Names in SQL, as clients write them: quoted, or folded as PostgreSQL folds them."""

import re
from typing import Final

NAME: Final = r'"((?:[^"]|"")+)"|([A-Za-z_\u0080-\U0010ffff][\w$]*)'
"""A pattern with two groups, the arguments of :func:`catalog_name`."""


def catalog_name(quoted: str | None, plain: str | None) -> str:
    """The name in the catalog; PostgreSQL folds only ASCII letters of an unquoted name.

    >>> catalog_name(None, "Name"), catalog_name('a""B', None)
    ('name', 'a"B')
    """
    if quoted is not None:
        return quoted.replace('""', '"')
    return re.sub("[A-Z]", lambda found: found[0].lower(), plain or "")
