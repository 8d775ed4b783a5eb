"""Settings for all tests."""

import os
from pathlib import Path

from hypothesis import settings

# Where a Spark on this machine finds spark-defaults.conf; a test that starts a cluster sets its own options.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "spark" / "conf")

# The blob runs a failed example again on any machine; a deadline would fail on a busy one.
settings.register_profile("flushtracker", print_blob=True, deadline=None)
# For a night, or a change to the core: pytest tests/unit --hypothesis-profile thorough
settings.register_profile("thorough", settings.get_profile("flushtracker"), max_examples=5_000)
settings.load_profile("flushtracker")
