"""Java: finding it, the jars for Spark and a local broker, and our own class for checkpoints on S3."""
