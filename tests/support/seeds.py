"""Seeds of random histories: a few for every run, and further ones for `make long`."""

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def seeds(always: Iterable[object], further: Iterable[object]) -> list[ParameterSet]:
    """Both, the ``further`` ones marked as long."""
    return [pytest.param(each) for each in always] + [pytest.param(each, marks=pytest.mark.long) for each in further]
