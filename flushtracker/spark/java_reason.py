"""Why something failed in the JVM, in one line: py4j's own text says only which call it was."""

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

JAVA_ERRORS = (PySparkException, Py4JJavaError)
"""What a call into Spark raises: known to Spark, or any Java exception."""


def java_reason(error: Exception) -> str:
    """The first line of the root cause's message, or of the error's own where there is no Java behind it."""
    if not isinstance(error, Py4JJavaError):
        return _first_line(str(error))
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    name = cause.getClass().getSimpleName()
    return f"{name}: {_first_line(cause.getMessage() or 'no reason given')}"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
