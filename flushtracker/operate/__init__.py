"""What operators do: look at the slot, take a shape out, put one in."""
