"""An extension of griffe: docstrings of ours, which are in reStructuredText, as Markdown."""

import re
from typing import Any, Final

from griffe import Extension, Object

_ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=`)")
_DOCTEST: Final = re.compile(r"^>>> .*(?:\n.+)*", re.M)


class Docstrings(Extension):
    """Takes out roles, and makes a block of code of each doctest."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    r"""
    >>> markdown("Like :func:`f`.\n\n>>> 1 + 1\n2")
    'Like `f`.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    return _DOCTEST.sub(r"```pycon\n\g<0>\n```", _ROLE.sub("", text))
