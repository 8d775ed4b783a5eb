"""Delta tables without a JVM: what all share, and the registry table; the others have rooms of their own."""
