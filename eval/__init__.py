"""Evaluation: compare systems on held-out questions."""
