"""What tries the product, apart from it: trials of writers and of whole loops, the demo, recordings, the warmup."""
