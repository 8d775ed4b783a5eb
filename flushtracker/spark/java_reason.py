"""Why something failed in the JVM, in one line: py4j's own text says only which call it was."""

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

JAVA_ERRORS = (PySparkException, Py4JJavaError)
"""What a call into Spark raises: known to Spark, or any Java exception."""


def java_reason(error: Exception) -> str:
    """The first line of the root cause's message, or of the error's own where there is no Java behind it."""
    if not isinstance(error, Py4JJavaError):
        return _first_line(str(error))
    cause = root_cause(error)
    return f"{cause.getClass().getSimpleName()}: {_first_line(cause.getMessage() or 'no reason given')}"


def root_cause(error: Py4JJavaError) -> Any:
    """The Java exception at the end of the causes."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return cause


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
