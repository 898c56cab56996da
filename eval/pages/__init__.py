"""What all pages share: templates, style, drawings."""
