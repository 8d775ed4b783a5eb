"""Settings for all tests."""

from hypothesis import settings

# The blob runs a failed example again on any machine; a deadline would fail on a busy one.
settings.register_profile("flushtracker", print_blob=True, deadline=None)
settings.load_profile("flushtracker")
