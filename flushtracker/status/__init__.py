"""What a running program knows of itself, as documents: pages, metrics and commands are views of them."""
