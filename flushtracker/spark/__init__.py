"""Shared by all Spark jobs: session, streams, checkpoint, and the run of a query."""
