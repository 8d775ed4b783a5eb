"""Java: which one runs, the jars that Spark and a local broker need, and a class of ours for checkpoints on S3."""
