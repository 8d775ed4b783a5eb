"""Settings for all tests."""

import os
from pathlib import Path

from hypothesis import settings

# The folder of spark-defaults.conf for local Spark; tests that start a cluster set their own options.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "spark" / "conf")

# The printed blob reproduces a failed example on any machine; a deadline would fail on a busy one.
settings.register_profile("flushtracker", print_blob=True, deadline=None)
# For nightly runs and changes to the core: pytest tests/unit --hypothesis-profile thorough
settings.register_profile("thorough", settings.get_profile("flushtracker"), max_examples=5_000)
# For make mutants: few examples, and the same ones for every mutant.
settings.register_profile(
    "mutants", settings.get_profile("flushtracker"), max_examples=25, derandomize=True, database=None
)
settings.load_profile("flushtracker")
