"""``flushtracker up``: all programs of the configuration on this machine, supervised."""
