"""The writers' job: shape changes in, the shape log and flush notifications out. On Spark."""
