"""The status documents of running programs. Page, metrics and commands derive from them."""
