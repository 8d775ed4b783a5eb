"""``SecretOptions``: options passed through to a library, possibly with keys and passwords."""

from collections.abc import Iterator, Mapping


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
