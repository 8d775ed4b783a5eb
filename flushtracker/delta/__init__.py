"""Delta tables, read and written without a JVM: the registry table here, the others in rooms of their own."""
