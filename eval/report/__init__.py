"""What was found, on pages to read."""
