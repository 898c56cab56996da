"""All settings, with their explanations. Importing it loads no model library."""
