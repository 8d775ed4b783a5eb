"""Runs a broker, and both jobs on one, and archives the classes that they load, so that they start faster."""
