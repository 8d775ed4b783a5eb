"""SIGTERM and Ctrl-C under Spark: a request to stop after the running batch, whichever process receives them.

Under spark-submit the JVM is the parent and receives the signal; by default it would tear Spark down mid-batch. So both
the interpreter and the JVM get a handler, and both only set an event. Set the interpreter's first, before a JVM is
launched (:func:`~flushtracker.process.stop_signals.set_on_signals`): an exception at that point would leave the JVM
behind.
"""

from threading import Event
from typing import Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from flushtracker.process.stop_signals import set_on_signals


class _JvmHandler:
    """A ``sun.misc.SignalHandler`` in Python: py4j calls it back from the JVM's signal thread."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def handle(self, _signal: Any) -> None:
        self._stop.set()

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]


def set_on_jvm_signals(stop: Event, spark: SparkSession) -> None:
    """Let the JVM's signals set ``stop``, and the interpreter's again: Spark replaces those handlers when it starts."""
    set_on_signals(stop)
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # pyspark has no types for it
    jvm = gateway.jvm
    for name in ("TERM", "INT"):
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), _JvmHandler(stop))
