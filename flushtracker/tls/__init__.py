"""TLS: why a server's certificate is not accepted, which the clients' own libraries do not say."""
