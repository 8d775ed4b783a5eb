"""Converts JVM errors to one-line reasons (py4j's own text only names the call), and query failures to our errors."""

import re
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from flushtracker.config.job_config import QueryConfig
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import FencedError, FlushtrackerError, GapError, SinkError, StateError
from flushtracker.spark.kafka_failures import kafka_failure, masked

_MAX_REASON_CHARS: Final = 400
# Spark found another driver's file when it checked, or the storage refused its own.
_CONCURRENT: Final = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using")
_DISK_FULL: Final = "No space left on device"
_DATA_LOSS: Final = re.compile(
    # The first is an executor's error, from reading; the second the driver's, from planning.
    r"Some data may have been lost.*?Reason: (?P<read>[^\n]+)|\[KAFKA_DATA_LOSS[^\]]*\]\s*(?P<planned>.+)",
    re.DOTALL,
)

_UNREACHABLE: Final = re.compile(r"^java\.net\.\w+Exception: (\w[^\n]*://[^\n]*)", re.MULTILINE)
"""An error of Hadoop's clients of stores: the request, its address, and why there was no answer."""

_RAISED: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)

JAVA_ERRORS = (PySparkException, Py4JJavaError)
"""What a call into Spark raises: PySpark's own errors, or any other Java exception."""


def java_reason(error: Exception) -> str:
    """The first line of the root cause's message, or of the error's own if no Java exception caused it.

    For an error of a Python worker, it is the line that says what was raised there.
    """
    if not isinstance(error, Py4JJavaError):
        return _first_line(str(error))
    cause = root_cause(error)
    return f"{cause.getClass().getSimpleName()}: {_first_line(cause.getMessage() or 'no reason given')}"


def root_cause(error: Py4JJavaError) -> Any:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return cause


def _first_line(text: str) -> str:
    """The first line; of text with a traceback of a Python worker, the one that says what was raised.

    >>> _first_line("Traceback (most recent call last):\\n  File x\\nKeyError: 1\\n\\nJVM stacktrace:\\n at y")
    'KeyError: 1'
    """
    raised = _RAISED.findall(text)
    return str(raised[-1]) if raised else text.strip().partition("\n")[0]


def query_failure(query: StreamingQuery, failure: BaseException | None, config: QueryConfig) -> BaseException:
    """The error to report for a query that ended; ``failure`` is what its ``foreachBatch`` raised, if anything."""
    if failure is not None and not isinstance(failure, Py4JJavaError):
        return failure  # From our own code, on purpose or not.
    causes = _causes(query, failure)
    if known := _known_failure("\n".join(causes), config):
        return known
    reason = _first_line(causes[-1]) if causes else "no reason given"
    if isinstance(config.transport, KafkaTransport):
        reason = masked(reason, config.transport)
    return FlushtrackerError(f"the query ended: {reason}")


def _known_failure(text: str, config: QueryConfig) -> FlushtrackerError | None:
    checkpoint = config.state.checkpoint
    if _CONCURRENT.search(text):
        return FencedError(
            f"this driver has been fenced: another driver writes to checkpoint {checkpoint}; let only one run"
        )
    if _DISK_FULL in text:
        return StateError(
            f"no space is left under checkpoint {checkpoint}, or on a disk that Spark uses; free some space and start "
            f"again, nothing is lost"
        )
    if away := _UNREACHABLE.search(text):
        return SinkError(f"the storage of checkpoint {checkpoint} cannot be reached: {away[1][:_MAX_REASON_CHARS]}")
    if isinstance(config.transport, KafkaTransport):
        if lost := _DATA_LOSS.search(text):
            fact = " ".join((lost["read"] or lost["planned"]).split())
            return GapError(f"Kafka no longer has records that this job has yet to read: {fact[:_MAX_REASON_CHARS]}")
        return kafka_failure(text, config.transport)
    return None


def java_text(error: Exception) -> str:
    """Class and message of each Java exception behind the error, outermost first."""
    return "\n".join(_chain(error.java_exception)) if isinstance(error, Py4JJavaError) else str(error)


def _causes(query: StreamingQuery, failure: Py4JJavaError | None) -> list[str]:
    """Class and message of each Java exception behind the failure, the root cause last."""
    cause: Any = failure.java_exception if failure is not None else query._jsq.exception()
    if failure is None:
        cause = cause.get() if cause.isDefined() else None
    return _chain(cause)


def _chain(cause: Any) -> list[str]:
    causes = []
    while cause is not None:
        causes.append(f"{cause.getClass().getName()}: {(cause.getMessage() or '').strip()}")
        cause = cause.getCause()
    return causes
