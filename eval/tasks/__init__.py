"""Tasks of methods: questions, reader prompts, judges and answer metrics."""
