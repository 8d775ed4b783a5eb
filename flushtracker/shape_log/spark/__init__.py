"""The shape log with Spark: its reader as DataFrames, and the files that tasks write."""
