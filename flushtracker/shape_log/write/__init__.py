"""The writers' job: reads shape changes, and writes the shape log and flush notifications. On Spark."""
