"""``flushtracker jobs``: tracker and writers in one Spark application."""
