"""What needs packages of Debian's: a real Prometheus and a real browser. `make verify` runs it."""
