"""Dependency layers: a shape that another one depends on is published before it."""

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter

from flushtracker.shape_definition import ShapeDefinition


def dependency_layers(definitions: Iterable[ShapeDefinition]) -> Mapping[str, int]:
    """The layer of each shape that has something to wait for: one above the highest it depends on.

    Shapes that are not named are in layer 0. A dependency on a shape that is not there counts for nothing.

    >>> table = ("public", "t")
    >>> dependency_layers([ShapeDefinition("a", table), ShapeDefinition("b", table, depends_on=("a",))])
    {'b': 1}

    Raises:
        graphlib.CycleError: a shape waits for itself; the file of shapes has been checked for that.
    """
    depends_on = {definition.id: definition.depends_on for definition in definitions}
    layers: dict[str, int] = {}
    for shape_id in TopologicalSorter(depends_on).static_order():
        below = [layers.get(other, 0) for other in depends_on.get(shape_id, ()) if other in depends_on]
        if below:
            layers[shape_id] = 1 + max(below)
    return layers
