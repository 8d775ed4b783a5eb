"""Java: which one runs, and the jars that Spark and a local broker need, locked and fetched once."""
