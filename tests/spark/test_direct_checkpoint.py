"""How Spark writes a checkpoint on S3: what a batch requests, and each file of it, whatever fails meanwhile."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from flushtracker.config.job_config import load_config
from flushtracker.jvm.checkpoint_jar import CLASS
from flushtracker.spark.file_manager import FILE_MANAGER, choose_file_manager, default_file_manager
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.tracking.job.query import track_flushes
from tests.support.faulty_proxy import RESET, Fault, FaultyProxy
from tests.support.job_folder import JobFolder
from tests.support.object_store import store_options
from tests.support.s3_session import s3_store
from tests.support.sample_source import SampleSource
from tests.support.seeds import every, in_turn
from tests.support.store_faults import WAYS, failing

_MANY: Final = 100
_PRICES: Final = {"GET": "read", "HEAD": "read", "LIST": "list", "PUT": "write", "POST": "write", "DELETE": "delete"}


@pytest.fixture
def proxy(running_proxy: FaultyProxy) -> FaultyProxy:
    """Without faults and requests of other tests."""
    running_proxy.requests()
    return running_proxy


class _Files:
    """The file manager of one folder, as Spark calls it."""

    def __init__(self, spark: SparkSession, name: str, settings: Mapping[str, str] | None = None) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._folder = f"s3a://bucket/{name}"
        self.read = HadoopFiles(spark, self._folder).read
        hadoop: Any = self._jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())  # type: ignore[union-attr]
        for key, value in (settings or {}).items():
            hadoop.set(key, value)
        self._manager = self._jvm.flushtracker.DirectCheckpointFiles(self._path(""), hadoop)  # type: ignore[union-attr]

    def begin(self, name: str, content: bytes, *, replaces: bool = False) -> Any:
        stream = self._manager.createAtomic(self._path(name), replaces)
        stream.write(bytearray(content))
        return stream

    def exists(self, name: str) -> bool:
        return bool(self._manager.exists(self._path(name)))

    def opened(self, name: str) -> bytes:
        stream = self._manager.open(self._path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def names(self, name: str) -> list[str]:
        return sorted(str(each.getPath().getName()) for each in self._manager.list(self._path(name)))

    def delete(self, name: str) -> None:
        self._manager.delete(self._path(name))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")


@pytest.fixture(autouse=True)
def chosen_file_manager(spark: SparkSession) -> Iterator[None]:
    """What a test chooses is not the choice of the others of this session."""
    yield
    spark.conf.unset(FILE_MANAGER)


def test_a_batch_writes_each_file_of_its_checkpoint_with_one_request(
    spark: SparkSession, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Nothing is copied or deleted; before each of its two logs, Spark looks whether the batch is there."""
    job, source, batches = JobFolder(tmp_path / "job"), SampleSource(), 4
    for lsn in range(1000, 1000 * batches + 1, 1000):
        job.write([source.transaction(lsn, "a"), source.flushed("a", lsn)])
    config = load_config(s3_store(proxy.port).take(job.config_file(), "counted"))
    track_flushes(spark, config, Event())
    requests = _of_batches(proxy.requests(), 2, batches - 1)
    found = Counter((_folder(request), _kind(request)) for request in requests)
    each = {place: count / (batches - 3) for place, count in found.items()}
    # Hadoop 3.4.1 has no conditional writes, so our class looks once more.
    looks = 2 if spark.version.startswith("4.0.") else 1
    for log in ("offsets", "commits"):
        expected = {"write": 1, "read": looks, "list": looks}
        assert {kind: each.pop((log, kind), 0) for kind in expected} == expected, requests
    # A file for each partition, and on Spark 4.1 its checksum. All else of the state is written once a minute. A look
    # before each, for a file and for a folder, gives the condition of its write, which Hadoop 3.4.1 has not.
    checked = spark.version.startswith("4.1.")
    written = 4 if checked else 2
    assert each.pop(("delta", "write")) == written
    expected_reads = (2 if checked else 0) + (0 if looks == 2 else 2 * written)
    assert [each.pop(("delta", kind), 0) for kind in ("read", "list")] == [expected_reads, 2 if checked else 0], (
        requests
    )
    assert not [place for place in each if place[0] in {"offsets", "commits", "delta"}], requests


def _of_batches(requests: list[str], first: int, last: int) -> list[str]:
    """From when the offsets of one batch are written until those of another are."""
    places = [requests.index(f"PUT /bucket/counted/checkpoint/offsets/{batch}") for batch in (first, last)]
    return requests[places[0] : places[1]]


def _folder(request: str) -> str:
    found = re.search(r"checkpoint(?:/|%2F)(\w+)", request)
    return "delta" if ".delta" in request else found[1] if found else ""


def _kind(request: str) -> str:
    return _PRICES["LIST" if "list-type" in request else request.partition(" ")[0]]


def test_a_file_that_must_not_be_replaced_is_not(spark: SparkSession, proxy: FaultyProxy) -> None:
    """Not even by a driver that has begun to write it before there was one: the store decides."""
    files = _Files(spark, "exclusive")
    late, first = files.begin("offsets/7", b"late"), files.begin("offsets/7", b"first")
    first.close()
    with pytest.raises(Py4JJavaError, match=r"FileAlreadyExistsException: s3a://bucket/exclusive/offsets/7"):
        late.close()
    assert files.read("offsets/7") == b"first"
    files.begin("offsets/7", b"replaced", replaces=True).close()
    assert files.read("offsets/7") == b"replaced"
    assert proxy.left() == 0


def test_late_write_of_state_replaces_nothing_that_was_not_there_when_it_was_begun(
    spark: SparkSession, proxy: FaultyProxy
) -> None:
    """It is of a driver that is gone, maybe with another configuration; a batch that runs again replaces its own."""
    files = _Files(spark, "late")
    late, first = (files.begin("state/7.delta", content, replaces=True) for content in (b"late", b"first"))
    first.close()
    if spark.version.startswith("4.0."):
        # Hadoop 3.4.1 has no conditional writes.
        late.close()
        assert files.read("state/7.delta") == b"late"
        return
    with pytest.raises(Py4JJavaError, match=r"FileAlreadyExistsException: s3a://bucket/late/state/7\.delta"):
        late.close()
    assert files.read("state/7.delta") == b"first"
    files.begin("state/7.delta", b"again", replaces=True).close()
    assert files.read("state/7.delta") == b"again"
    assert proxy.left() == 0


@pytest.mark.parametrize("replaces", [True, False])
def test_lost_answer_to_a_write_is_not_taken_for_another_driver(
    spark: SparkSession, proxy: FaultyProxy, *, replaces: bool
) -> None:
    """The retry finds the object of the first try, which names its writer."""
    files = _Files(spark, f"lost{replaces}")
    proxy.add(Fault("PUT .*file/7", RESET, takes_effect=True), Fault("PUT .*file/8", 500, takes_effect=True))
    for number in (7, 8):
        files.begin(f"file/{number}", b"content", replaces=replaces).close()
        assert files.read(f"file/{number}") == b"content"
    assert proxy.left() == 0


@pytest.mark.parametrize("replaces", [True, False])
def test_failed_write_is_an_error_and_leaves_nothing(
    spark: SparkSession, proxy: FaultyProxy, *, replaces: bool
) -> None:
    """Spark would go on without a file otherwise, which its next start needs."""
    files = _Files(spark, f"failed{replaces}")
    proxy.add(Fault("PUT .*offsets/7", 403, times=_MANY))
    with pytest.raises(Py4JJavaError, match="told to fail"):
        files.begin("offsets/7", b"content", replaces=replaces).close()
    assert proxy.left() < _MANY
    assert files.read("offsets/7") is None


@pytest.fixture
def impatient(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Settings of a client of its own that waits for a second; others wait for minutes."""
    jvm: Any = spark.sparkContext._jvm
    shortest = jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig
    shortest.setMinimumOperationDuration(jvm.java.time.Duration.ofSeconds(1))
    yield {"fs.s3a.connection.timeout": "1s", "fs.s3a.impl.disable.cache": "true"}
    shortest.resetMinimumOperationDuration()


@pytest.mark.parametrize("way", in_turn([*WAYS]))
def test_request_for_a_file_of_a_checkpoint_that_fails_once_is_no_error(
    spark: SparkSession, proxy: FaultyProxy, impatient: dict[str, str], way: str
) -> None:
    """Each request that Spark makes, whether or not the store has it; what arrives late changes nothing."""
    files = _Files(spark, f"ways{[*WAYS].index(way)}", impatient)
    for name, replaces in (("offsets/7", False), ("state/7.delta", True)):
        with failing(proxy, f"PUT .*{name}", way):
            files.begin(name, b"content", replaces=replaces).close()
        assert files.read(name) == b"content"
    with failing(proxy, "PUT .*state/7", way):
        files.begin("state/7.delta", b"again", replaces=True).close()
    # S3A takes half of an answer for an error of the store, and the query ends; the next start reads it again.
    read_way = "reset before" if way == "half" else way
    with failing(proxy, "HEAD .*state/7", read_way):
        assert files.exists("state/7.delta")
    with failing(proxy, "GET .*state/7", read_way):
        assert files.opened("state/7.delta") == b"again"
    with failing(proxy, "GET .*list-type", way):
        assert files.names("state") == ["7.delta"]
    with failing(proxy, "DELETE .*offsets/7", way):
        files.delete("offsets/7")
    assert [files.read("offsets/7"), files.read("state/7.delta")] == [None, b"again"]


def test_unfinished_file_is_not_there(spark: SparkSession, proxy: FaultyProxy) -> None:
    """Neither after a driver was killed that wrote it, nor when a batch fails."""
    files = _Files(spark, "unfinished")
    written = [files.begin(f"state/{number}.delta", b"content", replaces=True) for number in range(2)]
    assert [request for request in proxy.requests() if "PUT" in request] == []
    written[0].cancel()
    written[0].close()
    assert [files.read(f"state/{number}.delta") for number in range(2)] == [None, None]


@every(2, 1)
def test_checkpoint_with_renamed_files_is_continued_and_back(
    spark: SparkSession, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """By this release as by the one before, which is Spark's default: the files are the same."""
    job, source = JobFolder(tmp_path / "job"), SampleSource()
    config = load_config(s3_store(proxy.port).take(job.config_file(), "continued"))
    acks = AckReader("s3://bucket/continued/acks", store_options(proxy.port))
    default = default_file_manager(spark.version)
    for lsn, manager in ((1000, default), (2000, None), (3000, default)):
        job.write([source.transaction(lsn, "a"), source.flushed("a", lsn)])
        spark.conf.unset(FILE_MANAGER)
        if manager is not None:
            spark.conf.set(FILE_MANAGER, manager)
        proxy.requests()
        track_flushes(spark, config, Event())
        assert acks.last_ack(source.name) == lsn
        assert any("tmp" in request for request in proxy.requests()) == (manager is not None)


def test_another_query_of_the_session_may_have_its_checkpoint_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """An application that tracks flushes on a store in its own session, and has queries on other storages."""
    choose_file_manager(spark, "s3://bucket/c")
    assert spark.conf.get(FILE_MANAGER) == CLASS
    spark.range(7).write.parquet(str(tmp_path / "rows"))
    rows = spark.readStream.schema("id long").parquet(str(tmp_path / "rows"))
    written = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        query = written.trigger(availableNow=True).start(str(tmp_path / "copy"), "parquet")
        assert query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "copy")).count() == 7


def test_file_manager_fits_the_checkpoint_unless_one_was_chosen(spark: SparkSession, tmp_path: Path) -> None:
    """One session may run jobs on several storages, as the tests do."""
    for checkpoint, expected in (
        ("s3://bucket/c", CLASS),
        (str(tmp_path), "FileSystemBased"),
        ("s3a://bucket/c", CLASS),
    ):
        choose_file_manager(spark, checkpoint)
        assert expected in str(spark.conf.get(FILE_MANAGER))
    spark.conf.set(FILE_MANAGER, "com.example.Chosen")
    choose_file_manager(spark, "s3a://bucket/c")
    assert spark.conf.get(FILE_MANAGER) == "com.example.Chosen"
