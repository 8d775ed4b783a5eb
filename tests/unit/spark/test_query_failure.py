"""What is reported of a query that Spark has ended."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flushtracker.errors import FencedError, SinkError
from flushtracker.spark.java_errors import query_failure
from tests.support.job_folder import JobFolder


@dataclass
class _JavaError:
    """An exception of the JVM, as py4j shows it."""

    name: str
    message: str
    cause: "_JavaError | None" = None

    def getClass(self) -> Any:  # noqa: N802  Java's
        return SimpleNamespace(getName=lambda: self.name)

    def getMessage(self) -> str:  # noqa: N802
        return self.message

    def getCause(self) -> "_JavaError | None":  # noqa: N802
        return self.cause


_REFUSED = _JavaError("S3Exception", "At least one of the pre-conditions you specified did not hold")
_THERE = _JavaError("FileAlreadyExistsException", "s3a://bucket/c/offsets/1 already exists", _REFUSED)
_MULTIPLE = "Multiple streaming queries are concurrently using s3a://bucket/c/offsets/1."
_DETECTED = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 1."


def _reported(error: _JavaError, folder: Path) -> BaseException:
    ended = _JavaError("StreamingQueryException", "the query has ended", error)
    found = SimpleNamespace(isDefined=lambda: True, get=lambda: ended)
    query = SimpleNamespace(_jsq=SimpleNamespace(exception=lambda: found))
    return query_failure(cast("Any", query), None, JobFolder(folder).config())


@pytest.mark.parametrize(
    "error",
    [
        _JavaError("SparkConcurrentModificationException", _MULTIPLE, _THERE),
        _JavaError("SparkException", _DETECTED),
    ],
    ids=["the store refuses its file", "Spark finds the other's file"],
)
def test_driver_beside_another_one_on_its_checkpoint_is_reported_as_fenced(tmp_path: Path, error: _JavaError) -> None:
    """Whoever was first with a batch's offsets; the storage's own reason would not say what to do."""
    failure = _reported(error, tmp_path)
    assert isinstance(failure, FencedError)
    assert "another driver writes to checkpoint" in str(failure)


def test_storage_that_does_not_answer_is_named_with_the_file_that_was_asked_for(tmp_path: Path) -> None:
    """The root cause alone says only that some connection was refused."""
    sdk = "SdkClientException: Unable to execute HTTP request: Connect to 127.0.0.1:1 [/127.0.0.1] failed"
    refused = _JavaError("java.net.ConnectException", "Connection refused")
    asked = _JavaError("java.net.ConnectException", f"getFileStatus on s3a://bucket/c/offsets/1: {sdk}", refused)
    failure = _reported(asked, tmp_path)
    assert isinstance(failure, SinkError)
    checkpoint = JobFolder(tmp_path).config().state.checkpoint
    fact = f"the storage of checkpoint {checkpoint} cannot be reached: getFileStatus on s3a://bucket/c/offsets/1: {sdk}"
    assert str(failure) == fact
