"""``status`` of the configuration: where a program serves its status, and where it finds the others."""

from pathlib import Path

import pytest

from flushtracker.config.one_file import OneFile
from flushtracker.config.status_config import StatusConfig
from flushtracker.config.strict_yaml import read_yaml
from tests.support.config_files import ConfigFile

_ENVIRON = {"HOST": "10.0.0.7", "TOKEN": "hunter2"}
FILE = ConfigFile("job.yaml", lambda path: OneFile(read_yaml(path, _ENVIRON)).status("track"))
ALONE = "capture: false\nwrite: false\nserve: false\n"


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:9464", "127.0.0.1", 9464),
        ("localhost:0", "localhost", 0),
        ("[::1]:9464", "::1", 9464),
        ("[fe80::1%eth0]:65530", "fe80::1%eth0", 65_530),
        ("${HOST}:9464", "10.0.0.7", 9464),
    ],
)
def test_address_is_a_host_and_a_port(tmp_path: Path, listen: str, host: str, port: int) -> None:
    """IPv6 in brackets, as in a URL."""
    config = FILE.load(tmp_path, f'{ALONE}status: {{listen: "{listen}"}}\n')
    assert config == StatusConfig(host, port)
    assert config.listen == listen.replace("${HOST}", "10.0.0.7")


def test_status_is_served_by_default_unless_it_is_off(tmp_path: Path) -> None:
    peers = tuple(f"http://127.0.0.1:{port}" for port in (9465, 9466, 9468))
    assert FILE.load(tmp_path, "storage: data\n") == StatusConfig("127.0.0.1", 9464, peers)
    assert FILE.load(tmp_path, "status: false\n") is None


@pytest.mark.parametrize(
    "listen", ["127.0.0.1", ":9464", "127.0.0.1:", "::1:9464", "host:65536", "http://host:1", "a b:1", "host:1\\n"]
)
def test_other_addresses_are_refused_with_their_place(tmp_path: Path, listen: str) -> None:
    message = FILE.refusal(tmp_path, f'storage: data\nstatus:\n  listen: "{listen}"\n')
    assert message.startswith("job.yaml line 3: status.listen is ")
    assert message.endswith(", not a host and a port, such as 127.0.0.1:9464 or [::1]:9464")


def test_ports_of_all_programs_must_exist(tmp_path: Path) -> None:
    message = FILE.refusal(tmp_path, 'status: {listen: "h:65531"}\n')
    assert message == (
        "job.yaml line 1: status.listen is 'h:65531', not a port of at most 65530: the programs have the next five, too"
    )


def test_peers_are_base_urls(tmp_path: Path) -> None:
    urls = '{capture: "http://127.0.0.1:9/", write: "https://write.example/status"}'
    config = FILE.load(tmp_path, f"serve: false\nstatus: {{listen: 'h:1', urls: {urls}}}\n")
    assert config is not None
    assert config.peers == ("http://127.0.0.1:9", "https://write.example/status")


@pytest.mark.parametrize(
    "peer",
    ["127.0.0.1:9465", "ftp://host", "file:///etc/passwd", "http://h/?q=1", "http://h/#x", "http:// h", "http://"],
)
def test_other_peers_are_refused_with_their_place(tmp_path: Path, peer: str) -> None:
    message = FILE.refusal(tmp_path, f'status:\n  urls:\n    capture: "{peer}"\n')
    assert message.startswith("job.yaml line 3: status.urls.capture is ")
    assert message.endswith(", which is not a URL such as http://127.0.0.1:9465")


@pytest.mark.parametrize("peer", ["http://user:hunter2@host", "http://${TOKEN}@host", "http://host/a@hunter2"])
def test_a_peers_credentials_are_refused_and_not_shown(tmp_path: Path, peer: str) -> None:
    message = FILE.refusal(tmp_path, f'status: {{urls: {{capture: "{peer}"}}}}\n')
    assert message == "job.yaml line 1: status.urls.capture has credentials, which a status does not need"


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    message = FILE.refusal(tmp_path, "status: {url: {}}\n")
    assert message == "job.yaml line 1: status.url is not a known key; did you mean urls?"
