"""Tools that try the product and are not part of it: conformance trials, the demo, recordings and the warm-up."""
