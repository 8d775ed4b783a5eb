"""SIGTERM and Ctrl-C as a request to stop after the running batch, whenever and in whichever process they arrive.

Under spark-submit the JVM is the parent and gets the signal; by itself it would tear Spark down in mid-batch. So both
the interpreter and the JVM get a handler, and both only set an event. The interpreter's comes first, before a JVM is
launched: an exception there would leave the JVM behind.
"""

import signal
from threading import Event
from typing import Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession


class _JvmHandler:
    """A ``sun.misc.SignalHandler`` in Python: py4j calls it back from the JVM's signal thread."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def handle(self, _signal: Any) -> None:
        self._stop.set()

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]


def set_on_signals(stop: Event) -> None:
    """Let SIGTERM and SIGINT set ``stop`` from now on; call it from the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


def set_on_jvm_signals(stop: Event, spark: SparkSession) -> None:
    """The same for the JVM, and again for the interpreter, whose handlers Spark replaces when it starts."""
    set_on_signals(stop)
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # pyspark has no types for it
    jvm = gateway.jvm
    for name in ("TERM", "INT"):
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), _JvmHandler(stop))
