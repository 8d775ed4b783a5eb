"""What a job says before Spark starts: a folder that cannot be written, and brokers that do not answer."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection, create_server, socket
from threading import Event
from typing import Final

import pytest

from flushtracker.cli import main
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka import broker_check, topic_admin
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.spark.job_run import check_start
from tests.support.config_file import change_config, write_config
from tests.support.object_store import running_store, store_keys
from tests.support.processes import run_to_end

ROOT: Final = Path(__file__).parents[3]
PROGRAMS: Final = {"track": {"trigger": "available_now"}, "write": {"trigger": "available_now"}, "snapshot": {}}


def written_config(folder: Path, program: str, storage: object) -> Path:
    """A configuration of the program, whose tables are in ``storage``."""
    given = {"postgres": {"host": "127.0.0.1"}} if program == "snapshot" else {"files": str(folder)}
    return write_config(
        folder / "config.yaml", {**given, "storage": storage, program: PROGRAMS[program], "status": False}
    )


@pytest.mark.parametrize(
    ("program", "key", "changes"),
    [
        ("track", "track.checkpoint", {"storage": "{d}", "track": {"checkpoint": "{d}/file/folder"}}),
        ("track", "storage (acks)", {"track": {"checkpoint": "{d}/checkpoint"}}),
        ("write", "write.checkpoint", {"storage": "{d}", "write": {"checkpoint": "{d}/file/folder"}}),
        ("write", "storage (log)", {"write": {"checkpoint": "{d}/checkpoint"}}),
        ("write", "files.path/flushes", {"storage": "{d}", "files": "{d}/file/folder"}),
        ("snapshot", "storage (log)", {}),
    ],
)
def test_newcomer_names_a_folder_that_cannot_be_written(
    tmp_path: Path, program: str, key: str, changes: dict[str, object]
) -> None:
    """The message names the key and what is in the way, before Spark takes seconds to start."""
    (tmp_path / "file").write_text("in the way")
    config = written_config(tmp_path, program, "{d}/file/folder")
    change_config(config, changes)
    config.write_text(config.read_text().replace("{d}", str(tmp_path)))
    command = [sys.executable, "-m", "flushtracker", program, "--config", str(config)]
    done = run_to_end(command, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    path = f"{tmp_path}/file/folder" + {"s": f"/{key[9:-1]}", "f": "/flushes"}.get(key[0], "")
    assert done.stderr == (
        f"flushtracker {program}: {key}: {path} cannot be written: Not a directory at {tmp_path}/file; "
        "name a folder that can be created and written\n"
    )


@pytest.mark.parametrize(("program", "table"), [("track", "acks"), ("write", "log"), ("snapshot", "log")])
def test_newcomer_has_a_store_that_replaces_commits(tmp_path: Path, program: str, table: str) -> None:
    """Nothing starts, and it says which key names the store."""
    with running_store(replaces=True) as (port, _):
        file = written_config(tmp_path, program, {"path": "s3://bucket", **store_keys(port)})
        if program != "snapshot":
            change_config(file, {program: {"checkpoint": str(tmp_path / "checkpoint")}})
        command = [sys.executable, "-m", "flushtracker", program, "--config", str(file)]
        done = run_to_end(command, timeout=60, cwd=ROOT)
    assert f"storage ({table}): the object store of s3://bucket/{table} ignores If-None-Match" in done.stderr
    assert done.returncode == ConfigError.exit_code


def test_a_check_leaves_nothing_behind_and_asks_no_other_storage(tmp_path: Path) -> None:
    """Neither for a folder that is there nor for one that is not, nor for a URI of one."""
    (tmp_path / "acks").mkdir()
    uri = f"file://{tmp_path}/other"
    check_start(None, {"a": f"{tmp_path}/acks", "b": f"{tmp_path}/new/acks", "c": "s3://bucket/acks", "d": uri})
    assert list(tmp_path.rglob("*")) == [tmp_path / "acks"]


@pytest.mark.parametrize("name", ["PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR"])
def test_a_path_that_may_be_on_hdfs_is_not_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's default file system may be another than the driver's disk; a file URI is always that disk."""
    monkeypatch.setenv(name, "1")
    check_start(None, {"track.checkpoint": "/proc/checkpoint"})
    (line,) = caplog.messages
    assert line.startswith("track.checkpoint: /proc/checkpoint cannot be written: ")
    assert line.endswith("; ignore this if /proc/checkpoint is in Spark's default file system, which is not local")
    with pytest.raises(ConfigError, match=r"^storage: file:///proc/acks cannot be written: "):
        check_start(None, {"storage": "file:///proc/acks"})


def test_a_file_system_that_takes_no_folders_is_refused_for_root_too() -> None:
    """Root may write everything, by its permissions."""
    with pytest.raises(ConfigError, match=r"^storage: /proc/acks cannot be written: .* at /proc; name a folder"):
        check_start(None, {"storage": "/proc/acks"})


def test_newcomer_replays_to_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option."""
    (tmp_path / "file").write_text("in the way")
    shapes = str(ROOT / "conf" / "shapes.yaml")
    out = str(tmp_path / "file" / "out")
    assert main(["replay", "--recording", str(ROOT / "tests/recording"), "--shapes", shapes, "--out", out]) == 2
    assert capsys.readouterr().err == (
        f"flushtracker replay: --out {out}: stream {out}/fragments cannot be used: Not a directory; name a writable "
        "directory\n"
    )


# Brokers


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that takes connections, and is no broker."""
    with create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refused() -> str:
    """An address at which nothing listens."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def contact(servers: str, options: dict[str, str], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a job whose source has these options logs before Spark starts."""
    transport = KafkaTransport(servers, {"fragments": "f", "flushes": "g"}, SecretOptions(options))
    check_start(transport, {})
    return [record.getMessage() for record in caplog.records]


def test_newcomer_has_a_wrong_port_or_a_wrong_name_of_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    """Each address is told with its reason, at once; the job still retries, since a broker may start later."""
    address = refused()
    (line,) = contact(f"{address},kafka.invalid:9092", {}, caplog)
    assert re.fullmatch(
        f"waiting for kafka servers={address},kafka.invalid:9092 gives_up_after_s=600 reason={address}: Connection "
        "refused, kafka.invalid:9092: .*[Nn]ame.*",
        line,
    )


def test_servers_that_drop_packets_do_not_add_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name has many addresses, and another is never resolved; the program waits once for all of them."""
    released = Event()
    asked: list[str] = []

    def connect(address: tuple[str, int], timeout: float) -> socket:
        asked.append(address[0])
        for _ in range(6):  # addresses, of which each may take the timeout
            released.wait(5 if address[0] == "unresolved" else timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(broker_check, "_CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr("socket.create_connection", connect)
    started = time.monotonic()
    (line,) = contact("many:9092, unresolved:9092,many:9092", {}, caplog)
    took_s = time.monotonic() - started
    released.set()
    assert line.endswith(" reason=many:9092: no answer within 0.5 s, unresolved:9092: no answer within 0.5 s")
    assert sorted(asked) == ["many", "unresolved"]
    assert took_s < 2.5  # one after the other, many:9092 alone would take 3 s


def test_one_server_that_answers_is_enough(
    silent: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is in the list; the others are not waited for."""
    blocked = Event()
    real = create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket:
        if address[0] == "unresolved":
            blocked.wait(30)
            raise TimeoutError("timed out")
        return real(address, timeout)

    monkeypatch.setattr(broker_check, "_CONNECT_TIMEOUT_S", 20.0)
    monkeypatch.setattr("socket.create_connection", connect)
    started = time.monotonic()
    assert contact(f"unresolved:1,{silent}", {"kafka.security.protocol": "SSL"}, caplog) == []
    assert time.monotonic() - started < 10
    blocked.set()


def test_newcomer_has_the_port_of_another_service(
    silent: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the connection, and says nothing that a broker says."""
    monkeypatch.setattr(broker_check, "_ANSWER_TIMEOUT_S", 0.5)
    (line,) = contact(silent, {}, caplog)
    assert line == (
        f"waiting for kafka servers={silent} gives_up_after_s=600 reason=no answer like that of a broker; "
        "check that Kafka listens there, and security.protocol"
    )


def test_brokers_with_tls_are_asked_for_a_connection_only(silent: str, caplog: pytest.LogCaptureFixture) -> None:
    """What they refuse, the JVM's client knows, with the options that only it reads."""
    assert contact(silent, {"kafka.security.protocol": "SASL_SSL"}, caplog) == []
    assert contact("one-word", {"kafka.security.protocol": "SSL"}, caplog) == []


def test_capture_says_while_it_waits_what_is_wrong_with_the_broker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so once, long before it gives up."""
    monkeypatch.setattr(topic_admin, "_LOG_WAITING_AFTER_S", 0.3)
    address = refused()
    with pytest.raises(BrokerError, match="Connection refused"):
        TopicAdmin(KafkaConfig(address, Topics("a", "b", "c", "d")), timeout_s=1.5).facts()
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(
        f"waiting for kafka servers={address} gives_up_after_s=1 reason={address}/bootstrap: Connect"
    )
