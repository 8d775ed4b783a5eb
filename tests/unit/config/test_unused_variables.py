"""A variable of the configuration is needed only by the programs that read its key."""

from pathlib import Path

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.errors import ConfigError
from flushtracker.kafka.kafka_config import load_kafka_config


def test_password_of_the_server_is_needed_only_by_programs_that_connect_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    path = tmp_path / "flushtracker.yaml"
    server = "postgres: postgresql://capture:${PGPASSWORD}@db/app\n"
    path.write_text(f"{server}kafka: broker:9092\nstorage: {tmp_path}\nshapes: shapes.d\n")
    assert load_config(path).sink.acks == f"{tmp_path}/acks"
    assert load_serve_config(path).sink.log == f"{tmp_path}/log"
    assert load_kafka_config(path).bootstrap_servers == "broker:9092"
    with pytest.raises(ConfigError, match="postgres names the environment variable PGPASSWORD, which is not set"):
        load_capture_config(path)
