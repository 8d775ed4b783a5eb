"""The tables on a real server with the API of S3, without Spark; ``tests/spark/test_s3_jobs.py`` has the jobs.

Every path that a configuration can put on such a store, and what is tried of it:

===================  ====================================================================================
acks                 created once, fenced, appended, compacted, vacuumed, read as capture and status do
registry table       programs that race
dead letters         appended once
shape log            claimed, appended, merged and vacuumed beside appends, read, followed
all of them          read by ``flushtracker read`` and ``flushtracker serve``
rows from before     by the jobs
checkpoints          by the jobs
===================  ====================================================================================
"""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from obstore.store import S3Store

from flushtracker.cli import main
from flushtracker.delta import compaction, new_file, owned_table
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table import upkeep as shape_log_upkeep
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.cut_log import CutLog
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.reader import read_shape_log
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from tests.support.config_file import write_serve_config
from tests.support.cut_clients import CutClient
from tests.support.faulty_proxy import RESET, Fault, FaultyProxy, faulty_proxy
from tests.support.object_store import store_keys, store_options
from tests.support.racing_entries import racing_programs_replace_no_commit
from tests.support.renewed_credentials import renewed_credentials
from tests.support.s3_server import S3Server, running_s3
from tests.support.sample_registry import shape_entry, table_entry
from tests.support.seeds import in_turn, seeds
from tests.support.serve_client import serving
from tests.support.serve_process import Process
from tests.support.shape_log_rows import SOURCE, arrow, commit, item
from tests.support.store_faults import random_fault
from tests.support.store_tables import one_of_several_writes_is_accepted

_NOW: Final = datetime.now(timezone.utc)
_DAY_S: Final = 86_400
_RELEASE_CHANCE: Final = 0.3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture
def options(s3: S3Server) -> dict[str, str]:
    return store_options(s3.port)


def test_server_accepts_exactly_one_of_several_conditional_writes(options: dict[str, str]) -> None:
    """What all commits rest on, so that the tests below say something: of 8 at the same moment, 40 times."""
    store = S3Store(
        "bucket",
        client_options={"allow_http": True},
        endpoint=options["AWS_ENDPOINT_URL"],
        region=options["AWS_REGION"],
        access_key_id=options["AWS_ACCESS_KEY_ID"],
        secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
    )
    one_of_several_writes_is_accepted(store)


def test_programs_that_race_replace_no_commit(s3: S3Server) -> None:
    racing_programs_replace_no_commit(s3.port, count=6)


def test_second_driver_and_second_writer_fence_the_first(options: dict[str, str]) -> None:
    """A stale one appends nothing more, and knows it."""
    first, second = (AckTable("s3://bucket/fenced", options) for _ in range(2))
    first.fence_others()
    assert first.append(_ack(1)) == 1
    second.fence_others()
    with pytest.raises(SinkError, match="this driver has been fenced"):
        first.append(_ack(2))
    stale, current = (LogClaim(create_shape_log("s3://bucket/fenced_log", options)) for _ in range(2))
    stale.take()
    current.take()
    with pytest.raises(SinkError, match="this writer has been fenced"):
        stale.append([], stale.version_of(0))
    replaced, writer = (RegistryTable("s3://bucket/fenced_shapes", options, create=True) for _ in range(2))
    replaced.fence_others()
    writer.fence_others()
    with pytest.raises(SinkError, match="this writer has been fenced"):
        replaced.append([shape_entry().to_json()], _NOW)
    assert second.append(_ack(3)) == 1
    assert second.last_acks() == {SOURCE: 3}


@pytest.mark.parametrize("status", in_turn([500, RESET]))
def test_lost_answer_to_the_creation_of_a_table_ends_nothing(s3: S3Server, status: int) -> None:
    """Each program goes on with the table that it has created, and another one finds the same."""
    folder = f"s3://bucket/created{status}"
    with faulty_proxy(s3.port) as proxy:
        options = store_options(proxy.port)
        proxy.add(Fault(r"PUT .*_delta_log/0{20}\.json", status, takes_effect=True, times=3))
        acks, table = AckTable(f"{folder}/acks", options), create_shape_log(f"{folder}/log", options)
        registry = RegistryTable(f"{folder}/shapes", options, create=True)
        assert proxy.left() == 0
        acks.fence_others()
        assert acks.append(_ack(1)) == 1
        LogClaim(table).take()
        assert registry.append([shape_entry().to_json()], _NOW) == 1
    options = store_options(s3.port)
    assert AckTable(f"{folder}/acks", options).last_acks() == {SOURCE: 1}
    assert create_shape_log(f"{folder}/log", options).version() == 1
    assert len(RegistryTable(f"{folder}/shapes", options, create=True).written()) == 1


@pytest.mark.parametrize("seed", seeds(1, further=1))
def test_random_faults_lose_no_ack_and_no_row(s3: S3Server, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of every kind, and late requests: what an append has reported as durable is there, and nothing twice.

    After an error, another driver and another writer go on, as after a restart.
    """
    for name, seconds in (("BEGIN_S", 1), ("PAUSE_S", 0.1), ("_RETRIED_S", 2.0)):
        monkeypatch.setattr(new_file, name, seconds)
    rng = random.Random(seed)  # noqa: S311  reproducible faults
    acks_uri, log_uri = f"s3://bucket/faults{seed}/acks", f"s3://bucket/faults{seed}/log"
    said_acks, said_rows, restarts = list[int](), list[int](), 0
    with faulty_proxy(s3.port) as proxy:
        options = store_options(proxy.port) | {"max_retries": "3", "retry_timeout": "5s", "timeout": "1s"}
        number = 1
        # In some histories no fault matters.
        while number <= 20 or (number <= 400 and not restarts):
            proxy.left()
            proxy.add(*(random_fault(rng) for _ in range(rng.randrange(5))))
            try:
                acks, table = AckTable(acks_uri, options), create_shape_log(log_uri, options)
                claim, files = LogClaim(table), LogFiles(table, options)
                acks.fence_others()
                claim.take()
                for batch_id in range(4):
                    proxy.add(*(random_fault(rng) for _ in range(rng.randrange(4))))
                    if rng.random() < _RELEASE_CHANCE:
                        proxy.release()
                    rows = arrow([item((number, 0), "insert", "k", {"id": "k"}), commit(number)])
                    written = [WrittenFile(files.write(rows, None, is_change=True))]
                    claim.append(written, claim.version_of(batch_id))
                    said_rows.append(number)
                    acks.append(_ack(number))
                    said_acks.append(number)
                    number += 1
            except (DeltaError, OSError, SinkError):
                restarts += 1
                number += 1
        proxy.release()
    table = DeltaTable(acks_uri, storage_options=store_options(s3.port))
    found = sorted(table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist())
    assert len(set(found)) == len(found)
    assert set(said_acks) <= set(found)
    table = DeltaTable(log_uri, storage_options=store_options(s3.port))
    found = sorted(table_rows(table, ["tx_offset"], "operation = 'commit'")["tx_offset"].to_pylist())
    assert len(set(found)) == len(found)
    assert set(said_rows) <= set(found)
    assert restarts
    assert len(said_acks) > 5


def test_ack_table_stays_small_and_readers_see_each_ack(
    s3: S3Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are merged, and a checkpoint replaces old commits; a reader that began before goes on."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 20)
    monkeypatch.setitem(owned_table.CONFIGURATION, "delta.checkpointInterval", "20")
    acks, reader = AckTable("s3://bucket/acks", options), AckReader("s3://bucket/acks", options)
    acks.fence_others()
    for lsn in range(1, 41):
        assert acks.append(_ack(lsn)) == 1
        if lsn % 10 == 0:
            assert reader.last_ack(SOURCE) == lsn
    s3.age("acks/", _DAY_S)
    for lsn in range(41, 66):
        assert acks.append(_ack(lsn)) == 1
    assert reader.last_ack(SOURCE) == AckTable("s3://bucket/acks", options).last_acks()[SOURCE] == 65
    table = DeltaTable("s3://bucket/acks", storage_options=options)
    assert sorted(table_rows(table, ["ack_lsn"])["ack_lsn"].to_pylist()) == list(range(1, 66))
    log = {path.name for path in (s3.folder / "acks/_delta_log").iterdir()}
    assert {"_last_checkpoint", f"{59:020}.checkpoint.parquet"} <= log
    # The first ones had expired, and a checkpoint of their time replaces them.
    assert f"{5:020}.json" not in log
    assert len(table.file_uris()) < 20


def test_log_is_merged_and_vacuumed_beside_appends(
    s3: S3Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is there once, also for a reader meanwhile; what is old and not the table's is deleted."""
    monkeypatch.setattr(shape_log_upkeep, "VACUUM_EVERY", 2)
    log, count, is_done = "s3://bucket/log", 40, Event()
    table = create_shape_log(log, options)
    claim, files = LogClaim(table), LogFiles(table, options)
    claim.take()
    reports = []

    def keep() -> None:
        upkeep = ShapeLogUpkeep(log, settings=MergeSettings(merge_files=3), storage_options=options)
        while not is_done.is_set():
            reports.append(upkeep.run(_NOW))

    thread = Thread(target=keep)
    thread.start()
    left = s3.folder / "log" / "part-left-behind.parquet"
    try:
        for number in range(count):
            tx = 1000 + 10 * number
            rows = [item((tx, 0), "insert", f"k{number}", {"id": f"k{number}"}), commit(tx)]
            claim.append([WrittenFile(files.write(arrow(rows), None, is_change=True))], claim.version_of(number))
            if number % 10 == 5:
                assert read_shape_log(log, "users", storage_options=options).rows.num_rows == 2 * (number + 1)
            if number == 20:
                left.write_bytes(b"rows")
                s3.age("log/part-left-behind.parquet", _DAY_S)
    finally:
        is_done.set()
        thread.join(60)
    assert sum(report.merges for report in reports) > 2
    assert not left.exists()
    found = table_rows(DeltaTable(log, storage_options=options), ["tx_offset"], "operation = 'commit'")
    assert sorted(found["tx_offset"].to_pylist()) == [1000 + 10 * number for number in range(count)]


def test_read_and_serve_get_a_shape_from_a_store(
    options: dict[str, str],
    s3: S3Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``read`` has the environment's settings, and ``serve`` those of its configuration."""
    log = "s3://bucket/served/log"
    table = create_shape_log(log, options)
    entries = [entry.to_json() for entry in (shape_entry(), table_entry())]
    RegistryTable(f"{log}_shapes", options, create=True).append(entries, _NOW)
    claim, files = LogClaim(table), LogFiles(table, options)
    claim.take()
    rows = arrow([item((10, 0), "insert", "a", {"id": "1"}), commit(10)])
    claim.append([WrittenFile(files.write(rows, None, is_change=True))], claim.version_of(0))
    server = Process(write_serve_config(tmp_path / "serve.yaml", "s3://bucket/served", store_keys(s3.port)))
    try:
        status, _, body = server.get("/v1/shape?shape=users&offset=-1")
    finally:
        server.process.kill()
        server.process.wait()
    assert (status, json.loads(body)[0]["value"]) == (200, {"id": "1"})
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    assert main(["read", "users", "--log", log, "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "1"


def test_vacuum_finds_more_files_than_a_page_of_a_listing_has(s3: S3Server, options: dict[str, str]) -> None:
    """A listing has a thousand names at most; what killed processes have left is deleted all the same."""
    acks = AckTable("s3://bucket/many", options)
    acks.fence_others()
    assert acks.append(_ack(1)) == 1
    for number in range(1100):
        (s3.folder / f"many/part-{number:04}.parquet").write_bytes(b"rows")
    s3.age("many/", _DAY_S)
    acks._owned.compact()
    assert len(list((s3.folder / "many").glob("*.parquet"))) == 1
    assert AckReader("s3://bucket/many", options).last_ack(SOURCE) == 1


def test_credentials_of_a_container_are_renewed_while_the_tables_are_open(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store soon refuses the old ones, and nothing has to start again; the library asks every tenth of a second."""
    with renewed_credentials(s3, tmp_path) as credentials:
        for name, value in credentials.env.items():
            monkeypatch.setenv(name, value)
        acks, table = AckTable("s3://bucket/renewed/acks"), create_shape_log("s3://bucket/renewed/log")
        claim, reader = LogClaim(table), AckReader("s3://bucket/renewed/acks")
        acks.fence_others()
        claim.take()
        for lsn in (1, 2, 3):
            assert acks.append(_ack(lsn)) == 1
            claim.append([], claim.version_of(lsn))
            assert reader.last_ack(SOURCE) == lsn
            credentials.renew(0.2)
    first = {"AWS_ACCESS_KEY_ID": "key1", "AWS_SECRET_ACCESS_KEY": "secret1"}
    with pytest.raises(OSError, match="InvalidAccessKeyId"):
        DeltaTable("s3://bucket/renewed/acks", storage_options=store_options(s3.port) | first)


def _ack(lsn: int) -> AckRow:
    return AckRow(SOURCE, lsn, lsn, lsn, 0, None, None, _NOW)


def test_one_look_is_for_all_who_wait_for_a_cut(
    s3: S3Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred clients of twenty shapes: of a new version it reads the commit, however many were before.

    So does the one read of what has changed in a shape, whoever waits for that.
    """
    monkeypatch.setattr("flushtracker.serve.poller._REOPEN_S", 600)
    uri, shape_ids = "s3://bucket/looked_at", [f"shape {number}" for number in range(20)]
    table, registry = create_shape_log(uri, options), RegistryTable(f"{uri}_shapes", options, create=True)
    registry.append([shape_entry(shape_id).to_json() for shape_id in shape_ids], _NOW)
    files, claim, cuts = LogFiles(table, options), LogClaim(table), CutLog(uri, registry, options)
    claim.take()

    def write(tx: int, shape_id: str) -> None:
        rows = [item((tx, 0), "insert", str(tx), {"id": str(tx)}, shape_id=shape_id), commit(tx, shape_id=shape_id)]
        claim.append([WrittenFile(files.write(arrow(rows), None, is_change=True))], claim.version_of(tx))

    for tx in range(10, 40):
        write(tx, shape_ids[tx % 20])
    cuts.note({SOURCE: 45})

    async def test(proxy: FaultyProxy) -> None:
        async with serving(uri, live_s=60.0, options=store_options(proxy.port)) as server:
            poller = server.served.parts.poller
            clients = [CutClient({"shape": shape_ids[n % 20], "cuts": "true"}) for n in range(200)]
            for client in clients:
                await client.sync(server)
            for cut, change, most in ((46, None, 8), (56, 50, 400), (57, None, 8), (66, 60, 40), (67, None, 8)):
                waiting = [asyncio.create_task(client.step(server, live=True)) for client in clients]
                while poller.waiting < len(clients):
                    await asyncio.sleep(0.01)
                looks = poller.polls
                proxy.requests()
                if change is not None:
                    write(change, shape_ids[0])
                cuts.note({SOURCE: cut})
                assert {sent_lsn.status for sent_lsn in await asyncio.gather(*waiting)} == {200}
                # The change may come before the cut.
                while any(client.lsn < cut for client in clients):
                    await asyncio.gather(*(each.step(server, live=True) for each in clients if each.lsn < cut))
                # A look that finds nothing is four requests, of both tables. The first change opens the log to read it.
                found = Counter(re.sub("[0-9]{20}", "N", each) for each in proxy.requests())
                assert found.total() <= most + 4 * (poller.polls - looks + 1), found

    with faulty_proxy(s3.port) as proxy:
        asyncio.run(asyncio.wait_for(test(proxy), 300))
