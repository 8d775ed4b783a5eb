"""The shape log and the registry table have a version, as the ack table has: a downgrade is refused, not guessed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from flushtracker.delta import owned_table
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.table_version import PROPERTY
from flushtracker.errors import SinkError
from flushtracker.shape_log.table import log_table as shape_log
from flushtracker.shape_log.table.log_table import create_shape_log, open_shape_log

_OPENED: dict[str, list[Callable[[str], object]]] = {
    "shape log": [create_shape_log, open_shape_log],
    "registry table": [lambda uri: RegistryTable(uri, create=True), RegistryTable],
}


@pytest.mark.parametrize("kind", _OPENED)
def test_a_table_of_a_later_release_is_refused_by_readers_and_writers(tmp_path: Path, kind: str) -> None:
    uri = str(tmp_path / "table")
    for open_table in _OPENED[kind]:
        open_table(uri)
    assert DeltaTable(uri).metadata().configuration[PROPERTY] == "1"
    DeltaTable(uri).alter.set_table_properties({PROPERTY: "2"}, raise_if_not_exists=False)
    for open_table in _OPENED[kind]:
        with pytest.raises(SinkError) as caught:
            open_table(uri)
        assert str(caught.value) == (
            f"{kind} {uri} has version 2, and this release reads version 1; upgrade this program, or go back to the "
            f"release that wrote the table"
        )


@pytest.mark.parametrize("kind", _OPENED)
def test_a_table_without_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Versions before the first release have written such, and another program's table has none either."""
    for module in (shape_log, owned_table):
        without = {name: value for name, value in module.CONFIGURATION.items() if name != PROPERTY}
        monkeypatch.setattr(module, "CONFIGURATION", without)
    uri = str(tmp_path / "table")
    for open_table in _OPENED[kind]:
        with pytest.raises(SinkError) as caught:
            open_table(uri)
        assert str(caught.value) == (
            f"{kind} {uri} has no flushtracker-version: a version before 0.1.0, or another program, wrote it; start "
            f"with new topics, tables and checkpoints"
        )
    assert PROPERTY not in DeltaTable(uri).metadata().configuration
