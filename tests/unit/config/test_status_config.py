"""``status`` in the configuration of each program: how it is read, and the message for each wrong one."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.snapshot_config import load_snapshot_config
from flushtracker.config.status_config import StatusConfig, read_status
from flushtracker.config.strict_yaml import read_yaml
from flushtracker.config.write_config import load_write_config
from tests.support.config_files import ConfigFile

FILE = ConfigFile("job.yaml", lambda path: read_status(read_yaml(path, {"HOST": "10.0.0.7", "TOKEN": "hunter2"})))

STATUS = 'status: {listen: "127.0.0.1:9464", peers: ["http://127.0.0.1:9465"]}\n'
CONF = Path(__file__).parents[3] / "conf"


class HasStatus(Protocol):
    """Any program's configuration."""

    @property
    def status(self) -> StatusConfig | None: ...


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:9464", "127.0.0.1", 9464),
        ("localhost:0", "localhost", 0),
        ("[::1]:9464", "::1", 9464),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65_535),
        ("${HOST}:9464", "10.0.0.7", 9464),
    ],
)
def test_address_is_a_host_and_a_port(tmp_path: Path, listen: str, host: str, port: int) -> None:
    """IPv6 in brackets, as in a URL."""
    config = FILE.load(tmp_path, f'status: {{listen: "{listen}"}}\n')
    assert config == StatusConfig(host, port)
    assert config.listen == listen.replace("${HOST}", "10.0.0.7")


def test_no_status_is_served_without_the_key(tmp_path: Path) -> None:
    assert FILE.load(tmp_path, "other: 1\n") is None


@pytest.mark.parametrize(
    "listen", ["127.0.0.1", ":9464", "127.0.0.1:", "::1:9464", "host:65536", "http://host:1", "a b:1", "host:1\\n"]
)
def test_other_addresses_are_refused_with_their_place(tmp_path: Path, listen: str) -> None:
    message = FILE.refusal(tmp_path, f'other: 1\nstatus:\n  listen: "{listen}"\n')
    assert message.startswith("job.yaml line 3: status.listen is ")
    assert message.endswith(", not a host and a port, such as 127.0.0.1:9464 or [::1]:9464")


def test_peers_are_base_urls(tmp_path: Path) -> None:
    text = 'status: {listen: "h:1", peers: ["http://127.0.0.1:9465/", "https://track.example/status"]}\n'
    config = FILE.load(tmp_path, text)
    assert config is not None
    assert config.peers == ("http://127.0.0.1:9465", "https://track.example/status")


@pytest.mark.parametrize(
    "peer",
    ["127.0.0.1:9465", "ftp://host", "file:///etc/passwd", "http://h/?q=1", "http://h/#x", "http:// h", "http://"],
)
def test_other_peers_are_refused_with_their_place(tmp_path: Path, peer: str) -> None:
    message = FILE.refusal(tmp_path, f'status:\n  listen: "h:1"\n  peers: ["{peer}"]\n')
    assert message.startswith("job.yaml line 3: status.peers lists ")
    assert message.endswith(", which is not a URL such as http://127.0.0.1:9465")


@pytest.mark.parametrize("peer", ["http://me:hunter2@host", "http://me:${TOKEN}@host", "http://host/a@hunter2"])
def test_a_peers_credentials_are_refused_and_not_shown(tmp_path: Path, peer: str) -> None:
    message = FILE.refusal(tmp_path, f'status: {{listen: "h:1", peers: ["http://a", "{peer}"]}}\n')
    assert message == "job.yaml line 1: status.peers has credentials in its entry 2, which a status does not need"


def test_nine_peers_are_too_many(tmp_path: Path) -> None:
    """Each has a thread of its own."""
    peers = ", ".join(f'"http://h{number}"' for number in range(9))
    message = FILE.refusal(tmp_path, f'status: {{listen: "h:1", peers: [{peers}]}}\n')
    assert message == "job.yaml line 1: status.peers has 9 entries; at most 8 are allowed"


def test_unknown_keys_and_a_missing_address_are_refused(tmp_path: Path) -> None:
    message = FILE.refusal(tmp_path, 'status: {listen: "h:1", peer: []}\n')
    assert message == "job.yaml line 1: status.peer is not a known key; did you mean peers?"
    assert FILE.refusal(tmp_path, "status: {}\n") == "job.yaml line 1: status.listen is missing"


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("track_flushes.yaml", load_config),
        ("write_shapes.yaml", load_write_config),
        ("snapshot_shapes.yaml", load_snapshot_config),
        ("capture.yaml", load_capture_config),
        ("serve.yaml", load_serve_config),
    ],
)
def test_every_program_reads_the_key(
    name: str, load: Callable[[Path], HasStatus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And serves nothing without it, as in its example."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "kafka:9092")
    file, text = ConfigFile(name, load), (CONF / name).read_text()
    assert file.load(tmp_path, text + STATUS).status == StatusConfig("127.0.0.1", 9464, ("http://127.0.0.1:9465",))
    assert file.load(tmp_path, text).status is None
    # The block in the comment is right, too.
    block = ("# status:", "#   listen", "#   peers")
    example = "\n".join(line[2:] for line in text.splitlines() if line.startswith(block))
    status = file.load(tmp_path, f"{text}\n{example}\n").status
    assert status is not None
    assert (status.listen_host, 9464 <= status.listen_port <= 9471) == ("127.0.0.1", True)
    assert f"http://{status.listen}" not in status.peers
