"""What a running program reports about itself, as documents. Page, metrics and commands derive from them."""
