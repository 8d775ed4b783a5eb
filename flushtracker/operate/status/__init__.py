"""`flushtracker status`: what holds the slot now."""
