"""Runs both jobs on a broker of their own, and archives the classes that Spark loads, so that jobs start faster."""
