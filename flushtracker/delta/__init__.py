"""The ack table, read and written without a JVM: the only package that imports deltalake."""
