"""Delta tables without a JVM: the code that all share, and the registry table; the others have their own packages."""
