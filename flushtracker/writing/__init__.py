"""What a writer of shape logs decides, whatever it stores them in. Pure code."""
