"""Prompts of the policy and parsers that turn its answers into search plans; one strategy, one file."""
