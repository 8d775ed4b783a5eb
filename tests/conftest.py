"""Settings for all tests."""

import os

from hypothesis import settings

# A JVM of a test lives for seconds or minutes, and would use more CPU time to compile itself well than it saves.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["KAFKA_OPTS"] = "-XX:TieredStopAtLevel=1"

# The printed blob reproduces a failed example on any machine; a deadline would fail on a busy one.
settings.register_profile("flushtracker", print_blob=True, deadline=None)
# For nightly runs and changes to the core: pytest tests/unit --hypothesis-profile thorough
settings.register_profile("thorough", settings.get_profile("flushtracker"), max_examples=5_000)
# For make mutants: few examples, and the same ones for every mutant.
settings.register_profile(
    "mutants", settings.get_profile("flushtracker"), max_examples=25, derandomize=True, database=None
)
settings.load_profile("flushtracker")
