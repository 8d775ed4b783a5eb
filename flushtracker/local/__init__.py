"""Servers that run here, from packages, for tests and demonstrations: never part of a job."""
