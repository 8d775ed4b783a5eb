"""Seeds of random histories: a few for every run, and further ones for `make long`."""

from collections.abc import Sequence
from typing import TypeAlias

import pytest
from _pytest.mark.structures import ParameterSet

Seeds: TypeAlias = "list[ParameterSet]"


def seeds(always: Sequence[int], further: Sequence[int]) -> Seeds:
    """Both, the ``further`` ones marked as long."""
    return [pytest.param(each) for each in always] + [pytest.param(each, marks=pytest.mark.long) for each in further]
