"""What a power failure leaves of a folder, for any program that writes there: what it has synced is sure to stay."""
