"""HTML reports of results."""
