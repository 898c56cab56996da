"""Frozen language models: prompts, calls, parsing of answers."""
