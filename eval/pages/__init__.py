"""Templates, styles and drawings shared by all pages."""
