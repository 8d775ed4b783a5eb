"""Programs on a server with the API of S3 show its keys nowhere.

``tests/spark/test_object_stores.py`` has ``track``.
"""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.local.free_ports import free_port
from flushtracker.local.postgres import LocalPostgres
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.config_file import write_serve_config
from tests.support.faulty_proxy import RESET, Fault, faulty_proxy
from tests.support.object_store import store_config, store_options
from tests.support.s3_server import S3Server, running_s3
from tests.support.sample_registry import shape_entry, table_entry
from tests.support.secret_watch import SecretWatch
from tests.support.seeds import every
from tests.support.shape_log_rows import arrow, commit, item
from tests.support.snapshot_rig import SnapshotRig
from tests.support.waiting import wait_until

_KEY: Final = "AKIAHUNTER"
"""Not secret: a store may name it in an error."""
_SECRETS: Final = {"SECRET": "hunter2hunter2"}
_LOG: Final = "s3://bucket/log"


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """With the keys that the programs have, an empty shape log, and no registry table."""
    with running_s3() as server:
        server.accept(_KEY, _SECRETS["SECRET"])
        create_shape_log(_LOG, store_options(server.port))
        yield server


def _stores(port: int) -> dict[str, object]:
    """Keys of ``storage``, which name the secrets."""
    config = store_config(port)
    keys = {"access_key_id": _KEY, "secret_access_key": "${SECRET}"}
    return {"s3": {"endpoint": config.endpoint, "region": config.region, **keys}}


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url) as response:  # noqa: S310  our own server
        return bytes(response.read())


def test_server_shows_no_secret_of_its_storage(s3: S3Server, tmp_path: Path) -> None:
    """Neither in its output nor in its pages, also after an error of the store."""
    options = store_options(s3.port)
    entries = [entry.to_json() for entry in (shape_entry(), table_entry())]
    RegistryTable(f"{_LOG}_shapes", options, create=True).append(entries, datetime.now(timezone.utc))
    table = create_shape_log(_LOG, options)
    claim = LogClaim(table)
    claim.take()
    rows = arrow([item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
    claim.append(list(row_files(table, options).write([rows])), claim.version_of(0))
    port = free_port()
    # That of `track`; `serve` has the fourth after it.
    listen, status = {"listen": f"127.0.0.1:{port - 4}"}, f"127.0.0.1:{port}"
    stores = _stores(s3.port)
    config = write_serve_config(tmp_path / "serve.yaml", "s3://bucket", stores, status=listen)
    watch, log = SecretWatch(_SECRETS), tmp_path / "log"
    with watch.running(log, "serve", "--config", str(config)) as process:

        def address() -> str:
            return log.read_text().partition("serving url=")[2].partition(" ")[0]

        url = wait_until(address, "it serves shapes", 120).rstrip("/")
        body = _get(f"{url}?shape=users&offset=-1")
        assert json.loads(body)[0]["value"] == {"id": "1"}
        pages = [_get(f"http://{status}/{page}") for page in ("metrics", "healthz")]
        s3.refuse(_KEY)
        before = len(log.read_text())
        wait_until(lambda: len(log.read_text()) > before, "it logs an error of the store", 120)
        watch.search("pages", [body, *pages])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == os.EX_OK
    watch.require_no_secret(tmp_path)


@every(4, 1)
def test_snapshot_shows_no_secret_of_its_storage(s3: S3Server, postgres: LocalPostgres, tmp_path: Path) -> None:
    """Neither the job nor its executors, which write the rows; nor do errors of the store change anything."""
    postgres.execute("CREATE TABLE users (id int PRIMARY KEY)", "ALTER TABLE users REPLICA IDENTITY FULL")
    postgres.execute("INSERT INTO users SELECT generate_series(1, 10)")
    options = store_options(s3.port)
    watch = SecretWatch(_SECRETS)
    with faulty_proxy(s3.port) as proxy:
        rig = SnapshotRig(postgres, tmp_path, _stores(proxy.port), "s3://bucket", options)
        rig.define(ShapeDefinition("all", ("public", "users")))
        proxy.add(
            Fault(r"PUT .*log/.*parquet", 503),
            Fault(r"PUT .*log/.*parquet", RESET, takes_effect=True),
            Fault(r"PUT .*log/_delta_log/\d{20}\.json", 500, takes_effect=True),
            Fault(r"PUT .*log/_delta_log/\d{20}\.json", RESET),
            Fault(r"GET .*log_shapes", 503, times=2),
        )
        code, output = watch.run(tmp_path / "job.log", "snapshot", "--config", str(rig.config_file()))
        assert code == os.EX_OK, output
        assert proxy.left() == 0
    assert read_shape(_LOG, "all", storage_options=options).rows.num_rows == 10
    watch.require_no_secret(tmp_path)
