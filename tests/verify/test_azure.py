"""Tables and checkpoints on ``abfs://``, on Azurite: Microsoft's stand-in for Azure's object store, not Azure itself.

Azurite has the protocol of an account without a hierarchical namespace. The rename of a file there is a copy, on the
condition that the new name is free, and a deletion. The faults of a store are tried on the one with the API of S3, and
here in the soak.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from obstore.store import AzureStore
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from flushtracker.errors import FlushtrackerError
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.file_manager import default_file_manager
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.tracking.job.driver import REMEDIES
from tests.support.azure_session import PLACE, azure_store
from tests.support.faulty_proxy import HELD, RESET, Fault, FaultyProxy
from tests.support.job_folder import JobFolder
from tests.support.object_store import AZURE_ACCOUNT, AZURE_CONTAINER, AZURE_KEY, azure_endpoint, azure_options
from tests.support.racing_entries import AZURE_URI, racing_programs_replace_no_commit
from tests.support.seeds import in_turn
from tests.support.store_jobs import (
    GARBAGE,
    Tracked,
    killed_driver_continues,
    undisturbed_job,
)
from tests.support.store_tables import (
    log_is_claimed_appended_merged_and_read,
    lost_answer_is_no_second_commit,
    one_of_several_writes_is_accepted,
)
from tests.support.waiting import wait_until

_IDENTITY: Final = {"format": "kafka", "fragments": "f (id)"}
_PLAN: Final = RecoveryPlan({0: PartitionPlan(100, {"7301/1/shapes": 40})})


@pytest.fixture
def proxy(azurite: FaultyProxy) -> FaultyProxy:
    """Without faults that a failed test has left."""
    azurite.left()
    return azurite


@pytest.fixture(scope="module")
def undisturbed(azure_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    return undisturbed_job(azure_spark, tmp_path_factory.mktemp("undisturbed"))


def test_server_accepts_exactly_one_of_several_conditional_writes(proxy: FaultyProxy) -> None:
    """What all commits rest on, so that the tests below say something: of 8 at the same moment, 40 times."""
    store = AzureStore(
        AZURE_CONTAINER,
        client_options={"allow_http": True},
        account_name=AZURE_ACCOUNT,
        account_key=AZURE_KEY,
        endpoint=azure_endpoint(proxy.port)["AZURE_STORAGE_ENDPOINT"],
    )
    one_of_several_writes_is_accepted(store)


@pytest.mark.soak
def test_programs_that_race_replace_no_commit(proxy: FaultyProxy) -> None:
    racing_programs_replace_no_commit(proxy.port, AZURE_URI)


@pytest.mark.parametrize("status", in_turn([500, 503, RESET]))
def test_commit_whose_answer_is_lost_is_there_once(proxy: FaultyProxy, status: int) -> None:
    fault = Fault(rf"PUT .*acks{status}/_delta_log/\d{{19}}[2-9]\.json", status, takes_effect=True)
    lost_answer_is_no_second_commit(f"{PLACE}/acks{status}", azure_options, proxy, fault)


def test_log_is_claimed_appended_merged_and_read(proxy: FaultyProxy) -> None:
    log_is_claimed_appended_merged_and_read(f"{PLACE}/log", azure_options(proxy.port))


def test_killed_driver_continues(
    azure_spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path
) -> None:
    job = Tracked(undisturbed, tmp_path, azure_store(proxy.port), "killed")
    killed_driver_continues(azure_spark, undisturbed, job)


@pytest.mark.soak
@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_lost_answer_to_a_rename_ends_the_job_and_the_next_start_continues(
    azure_spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path, log: str
) -> None:
    """hadoop-azure then compares where the copy is from with what it copied.

    Azurite has its account in that path, where Azure has it in the host's name; so here this never matches.
    """
    job = Tracked(undisturbed, tmp_path, azure_store(proxy.port), f"lost_{log}")
    proxy.add(Fault(rf"PUT .*lost_{log}/checkpoint/{log}/1(\?|$)", RESET, takes_effect=True))
    with pytest.raises(FlushtrackerError, match=r"rename from .* failed"):
        job.run(azure_spark)
    assert proxy.left() == 0
    job.run(azure_spark)
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == GARBAGE


def test_offsets_of_a_stale_driver_that_arrive_late_replace_nothing(
    azure_spark: SparkSession, proxy: FaultyProxy
) -> None:
    """It has looked, and found no such batch; the store refuses the copy that is its rename, and Spark learns of it."""
    files = _Files(azure_spark, "late/offsets")
    files.write("6", b"both drivers have this")
    proxy.add(Fault(r"PUT .*late/offsets/7(\?|$)", HELD))
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(files.write, "7", b"of the stale one")
        wait_until(lambda: proxy.held() == 1, "the copy is held", 60)
        files.write("7", b"of the next one")
        ((_, status),) = proxy.release()
        with pytest.raises(Py4JJavaError, match=r"rename from .* failed"):
            late.result()
    assert status == 409
    assert files.read("7") == b"of the next one"


@pytest.mark.soak
def test_recovery_renames_a_checkpoint(azure_spark: SparkSession, proxy: FaultyProxy) -> None:
    """Blob by blob; what was there is kept, and not continued."""
    assert proxy.left() == 0
    checkpoint = f"{PLACE}/recovered/checkpoint"
    origin = CheckpointOrigin(azure_spark, checkpoint, REMEDIES)
    origin.open(_IDENTITY)
    for number in range(4):
        HadoopFiles(azure_spark, f"{checkpoint}/offsets").write(str(number), b"v1")
    origin.replace(_IDENTITY, _PLAN)
    assert CheckpointOrigin(azure_spark, checkpoint, REMEDIES).open(_IDENTITY) == _PLAN
    files = HadoopFiles(azure_spark, f"{PLACE}/recovered")
    assert files.names("checkpoint") == ["flushtracker.json"]
    (kept,) = set(files.names()) - {"checkpoint"}
    assert {*files.names(f"{kept}/offsets")} == {"0", "1", "2", "3"}


class _Files:
    """Spark's own file manager, which it takes on this store, for one folder."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._folder = f"{PLACE}/{name}"
        self.read = HadoopFiles(spark, self._folder).read
        of_class: Any = self._jvm
        for part in default_file_manager(spark.version).split("."):
            of_class = getattr(of_class, part)
        hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._manager: Any = of_class(self._path(""), hadoop)
        self._manager.mkdirs(self._path(""))

    def write(self, name: str, content: bytes) -> None:
        """As Spark writes offsets: a file that must not be replaced."""
        stream = self._manager.createAtomic(self._path(name), False)  # noqa: FBT003  Spark's overwriteIfPossible
        stream.write(bytearray(content))
        stream.close()

    def _path(self, name: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path
        return path(self._folder, name) if name else path(self._folder)
