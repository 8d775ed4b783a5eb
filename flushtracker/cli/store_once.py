"""``StoreOnce``: an option with one value, which may be given only once."""

import argparse
from collections.abc import Sequence
from typing import Any


class StoreOnce(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **settings)
        self._is_given_to: argparse.Namespace | None = None

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        if self.option_strings and self._is_given_to is namespace:
            raise argparse.ArgumentError(self, "is given more than once")
        self._is_given_to = namespace
        setattr(namespace, self.dest, values)
