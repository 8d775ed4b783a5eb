"""The local broker without starting it: its ports."""

from pathlib import Path

import pytest

from flushtracker.errors import ConfigError
from flushtracker.local.broker import LocalBroker


def _created_for(folder: Path, port: int) -> None:
    (folder / "server.properties").write_text(f"listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:29093\n")


def test_port_is_that_of_its_data_else_the_given_one(tmp_path: Path) -> None:
    assert LocalBroker(tmp_path, port=29_092).bootstrap_servers == "127.0.0.1:29092"
    _created_for(tmp_path, 29_094)
    assert LocalBroker(tmp_path).bootstrap_servers == "127.0.0.1:29094"
    assert LocalBroker(tmp_path, port=29_094).bootstrap_servers == "127.0.0.1:29094"


def test_data_of_another_port_is_refused(tmp_path: Path) -> None:
    """Its topics belong to another configuration."""
    _created_for(tmp_path, 29_094)
    with pytest.raises(ConfigError, match=r"server\.properties is for port 29094, not 29092; move .* away, or use"):
        LocalBroker(tmp_path, port=29_092)
