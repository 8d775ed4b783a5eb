"""``SecretOptions``: options for a library, possibly with keys and passwords."""

import re
from collections.abc import Container, Iterator, Mapping
from typing import Final

_SHORTEST_SECRET: Final = 4
"""Shorter values are numbers or flags. Masking them would make messages unreadable."""
# A JAAS configuration is one option with several values, and an error may quote one of them.
_WORD: Final = re.compile(r"[^\s\"'=;]+")


class SecretOptions(Mapping[str, str]):
    """Options by name; ``repr`` shows only the names, since any value may be a secret.

    >>> SecretOptions({"AWS_SECRET_ACCESS_KEY": "x"})
    SecretOptions(AWS_SECRET_ACCESS_KEY=…)
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})

    def __getitem__(self, name: str) -> str:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return f"SecretOptions({', '.join(f'{name}=…' for name in self)})"

    def masked(self, text: str, *, shown: Container[str] = ()) -> str:
        """``text`` with ``…`` in place of each value and each word of a value, except those of the options ``shown``.

        >>> options = SecretOptions({"mechanism": "PLAIN", "login": 'required password="hunter2";'})
        >>> options.masked("PLAIN: no such key: hunter2", shown=["mechanism"])
        'PLAIN: no such key: …'
        """
        values = [value for name, value in self.items() if name not in shown]
        secrets = {*values, *(word for value in values for word in _WORD.findall(value))}
        # The longest first, because one may contain another.
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "…")
        return text
