"""``flushtracker conformance-loop`` on this machine: the loop passes, and one that acknowledges too early does not."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from flushtracker.local.postgres import LocalPostgres
from flushtracker.trials.loop_trial.history import RULES
from flushtracker.trials.loop_trial.trial_setup import PARTS
from tests.support.brokers import Broker
from tests.support.certificates import HOST
from tests.support.config_file import write_config
from tests.support.object_store import store_config
from tests.support.processes import run_to_end
from tests.support.s3_server import running_s3
from tests.support.secured_broker import SecuredBroker
from tests.support.secured_postgres import SecuredPostgres
from tests.support.seeds import every
from tests.support.spark_cluster import FAST_START

ROOT: Final = Path(__file__).parents[2]
_LEFT: Final = """
SELECT nspname FROM pg_namespace WHERE nspname LIKE 'flushtracker%'
UNION ALL SELECT pubname FROM pg_publication UNION ALL SELECT slot_name FROM pg_replication_slots
"""
_OPERATIONS: Final = ("CREATE", "DELETE", "DESCRIBE_CONFIGS", "READ", "WRITE")
# With another program in place of flushtracker's own.
_RUN: Final = """
import sys
from flushtracker.cli.arguments import Parser, add_conformance_loop
from flushtracker.trials.loop_trial.program import run
parser = Parser()
add_conformance_loop(parser)
sys.exit(run(parser.parse_args(sys.argv[2:]), sys.argv[1]))
"""


Settings: TypeAlias = dict[str, Any]


@pytest.fixture
def plain(postgres: LocalPostgres, broker: Broker) -> Settings:
    """Where anybody may do anything."""
    return {
        "postgres": dict(postgres.options),
        "kafka": {"bootstrap_servers": broker.bootstrap_servers, "replication_factor": 1},
    }


@pytest.fixture
def secured(
    secured_server: SecuredPostgres, secured_broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """With TLS and passwords, and a role and a user with no more privileges than docs/deploying.md says."""
    role, password = f"trial_{uuid.uuid4().hex[:8]}", f"secret-{uuid.uuid4().hex}"
    secured_server.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{password}'",
        f"GRANT CONNECT, CREATE ON DATABASE postgres TO {role}",
    )
    user = secured_broker.create_user((operation, "flushtracker_trial_*") for operation in _OPERATIONS)
    brokers, streams = user.options(secured_broker.ca_file), user.java_options(secured_broker.ca_file)
    for options, name in ((brokers, "sasl.password"), (streams, "kafka.sasl.jaas.config")):
        variable = name.upper().replace(".", "_")
        monkeypatch.setenv(variable, options[name])
        options[name] = f"${{{variable}}}"
    monkeypatch.setenv("TRIAL_PASSWORD", password)
    connection = {
        "host": HOST,
        "port": str(secured_server.port),
        "dbname": "postgres",
        "user": role,
        "password": "${TRIAL_PASSWORD}",
        "sslmode": "verify-full",
        "sslrootcert": str(secured_server.ca_file),
    }
    return {
        "postgres": connection,
        "kafka": {
            "bootstrap_servers": secured_broker.servers,
            "options": brokers,
            "spark_options": streams,
            "partitions": 2,
            "replication_factor": 1,
        },
    }


def trial(module: str, settings: Settings, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it with its files in ``folder``."""
    config = folder / "loop.yaml"
    write_config(config, {"storage": str(folder / "place"), **settings})
    arguments = ["--config", str(config), "--data", str(folder / "data"), *options]
    return run_to_end(
        [sys.executable, "-c", _RUN, module, *arguments], cwd=ROOT, env={**os.environ, "JAVA_TOOL_OPTIONS": FAST_START}
    )


def rules(output: str, outcome: str) -> list[str]:
    """Those with this outcome, a pattern."""
    return re.findall(rf"^(?:{outcome})\s+(\w+)  ", output, re.MULTILINE)


@every(12, 1)
def test_flushtracker_passes_with_tls_and_passwords(
    secured: Settings, secured_server: SecuredPostgres, tmp_path: Path
) -> None:
    """It leaves the server as it was, and no secret in any file."""
    before = secured_server.execute(_LEFT)
    done = trial("flushtracker", secured, tmp_path, "--kills", "1", "--seed", "3", "--timeout", "300")
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert rules(done.stdout, "pass") == [*RULES], output
    assert "seed 3" in done.stdout
    assert "left behind" not in done.stderr
    assert secured_server.execute(_LEFT) == before
    assert "secret-" not in output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > len(PARTS)
    assert [path for path in files if b"secret-" in path.read_bytes()] == []


@every(12, 7)
def test_a_loop_that_acknowledges_too_early_fails(plain: Settings, postgres: LocalPostgres, tmp_path: Path) -> None:
    """It leaves the server as it was, too, with a table of someone else."""
    postgres.execute("CREATE TABLE theirs (id int PRIMARY KEY)", "INSERT INTO theirs VALUES (1)")
    done = trial("tests.support.early_ack", plain, tmp_path, "--kills", "1", "--seed", "3", "--timeout", "300")
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert rules(done.stdout, "FAIL") == ["durable"], output
    assert rules(done.stdout, r"FAIL|\?") == [*RULES], output
    assert "left behind" not in done.stderr
    assert postgres.execute(_LEFT) == []
    assert postgres.execute("SELECT count(*) FROM theirs") == [(1,)]


@every(12, 10)
def test_a_tail_that_skips_what_it_lacks_fails(plain: Settings, tmp_path: Path) -> None:
    """A server began to read the topic while the log was behind, and shows a client what came after that."""
    done = trial("tests.support.unlinked_tail", plain, tmp_path, "--kills", "1", "--seed", "3", "--timeout", "300")
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert rules(done.stdout, "FAIL") == ["http"], output


@pytest.mark.soak
def test_flushtracker_passes_on_an_object_store(
    plain: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables and checkpoints are on a server with the API of S3, whose keys come from the configuration alone."""
    monkeypatch.setenv("TRIAL_S3_SECRET", secret := f"secret-{uuid.uuid4().hex}")
    with running_s3(tmp_path / "store") as s3:
        s3.accept("trial", secret)
        store = store_config(s3.port)
        keys = {"access_key_id": "trial", "secret_access_key": "${TRIAL_S3_SECRET}"}
        settings = {
            **plain,
            "storage": {
                "path": "s3://bucket/trials",
                "s3": {"endpoint": store.endpoint, "region": store.region, **keys},
            },
        }
        done = trial("flushtracker", settings, tmp_path, "--kills", "3", "--seed", "3", "--timeout", "300")
        written = {path.parent.name for path in (s3.folder / "trials").glob("conformance/*/*/_delta_log")}
        checkpoints = {path.parent.name for path in (s3.folder / "trials").glob("conformance/*/checkpoints/*/commits")}
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert rules(done.stdout, "pass") == [*RULES], output
    assert written >= {"acks", "log", "log_shapes"}
    assert checkpoints == {"track", "write"}
    assert "left behind" not in done.stderr
    assert not (tmp_path / "place").exists()
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert len(files) > len(PARTS)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in output
