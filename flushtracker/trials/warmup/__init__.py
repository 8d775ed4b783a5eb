"""Runs a broker and both jobs, and archives the classes that they load, so that they start faster."""
