"""What ``serve`` does while its object store answers late or not at all; ``tests/integration`` has a real store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.shape_log.table.log_table import create_shape_log
from tests.support.config_file import write_serve_config
from tests.support.faulty_proxy import HELD, Fault, faulty_proxy
from tests.support.object_store import running_store, store_keys, store_options
from tests.support.sample_registry import shape_entry, table_entry
from tests.support.serve_process import Process
from tests.support.shape_log_rows import append, inserts, item

_LOG: Final = "s3://bucket/log"
_MANY: Final = [f"many{number:02}" for number in range(60)]
_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)
_TIMEOUT_S: Final = 25.0
"""Less than the 30 s after which the store's client gives up a request by default."""


def test_store_that_leaves_requests_unanswered_stops_no_client(tmp_path: Path) -> None:
    """deltalake holds the GIL while it opens a file, so the whole server stood still, for minutes.

    The poller opens the files of new commits. Without an answer in time it asks in another way, and all clients see
    what is new of the log, and of the registry.
    """
    with running_store() as (port, _), faulty_proxy(port) as proxy:
        options = store_options(port)
        log = create_shape_log(_LOG, options)
        registry = RegistryTable(f"{_LOG}_shapes", options, create=True)
        registry.append([entry.to_json() for entry in (shape_entry(), table_entry())], _NOW)
        append(log, inserts(10, "a"))
        server = Process(write_serve_config(tmp_path / "serve.yaml", "s3://bucket", store_keys(proxy.port)))
        try:
            handle = server.get("/v1/shape?shape=users&offset=-1")[1]["electric-handle"]
            proxy.add(Fault("HEAD ", HELD, times=1_000))
            append(DeltaTable(_LOG, storage_options=options), inserts(20, "b"))
            live = f"/v1/shape?shape=users&offset=10_0&live=true&handle={handle}"
            status, headers, body = server.get(live, _TIMEOUT_S)
            assert (status, headers["electric-offset"]) == (200, "20_0"), body
            assert proxy.held() > 0
            registry.append([shape_entry("others").to_json()], _NOW + timedelta(seconds=1))
            assert server.get("/v1/shape?shape=others&offset=-1", _TIMEOUT_S)[0] == 200
            assert server.get("/readyz", _TIMEOUT_S)[0] == 200
        finally:
            server.process.kill()


def test_file_that_never_answers_stops_only_clients_of_its_shapes(tmp_path: Path) -> None:
    """A query for its shapes takes minutes, and the poller waited for it: after 30 s every client got a 503.

    Clients ask for so many shapes of the file that no query has all of them, and once it answers, they are served.
    """
    with running_store() as (port, _), faulty_proxy(port) as proxy:
        options = store_options(port)
        log = create_shape_log(_LOG, options)
        registry = RegistryTable(f"{_LOG}_shapes", options, create=True)
        registry.append([table_entry().to_json(), *(shape_entry(each).to_json() for each in ["users", *_MANY])], _NOW)
        append(log, inserts(10, "a"))
        before = set(log.file_uris())
        append(log, [item((15, 0), "insert", "a", {"id": "a"}, shape_id=each) for each in _MANY])
        (stalled,) = set(DeltaTable(_LOG, storage_options=options).file_uris()) - before
        server = Process(write_serve_config(tmp_path / "serve.yaml", "s3://bucket", store_keys(proxy.port)))
        try:
            handle = server.get("/v1/shape?shape=users&offset=-1")[1]["electric-handle"]
            fault = Fault(stalled.rpartition("/")[2], HELD, times=1_000)
            proxy.add(fault)
            with ThreadPoolExecutor(len(_MANY)) as clients:
                asked = [clients.submit(server.get, f"/v1/shape?shape={each}&offset=-1") for each in _MANY]
                for lsn in range(20, 50, 10):
                    append(DeltaTable(_LOG, storage_options=options), inserts(lsn, "b"))
                    live = f"/v1/shape?shape=users&offset={lsn - 10}_0&live=true&handle={handle}"
                    status, headers, body = server.get(live)
                    assert (status, headers.get("electric-offset")) == (200, f"{lsn}_0"), body
                assert {answer.result()[0] for answer in asked} == {503}
            assert proxy.held() > 0
            assert server.get("/v1/shape?shape=users&offset=-1")[0] == 200
            assert server.get("/readyz")[0] == 200
            proxy.left()
            proxy.release()
            while server.get(f"/v1/shape?shape={_MANY[0]}&offset=-1")[0] != 200:
                pass
        finally:
            server.process.kill()
