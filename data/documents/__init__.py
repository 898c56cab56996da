"""Documents as files: reads Markdown, plain text, HTML, PDF and JSON lines, and cuts them into passages."""
