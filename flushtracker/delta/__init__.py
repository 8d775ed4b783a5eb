"""Delta tables without a JVM: the code that all share, the registry table and the dead-letter table."""
