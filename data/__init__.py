"""Corpora, questions and judgements: formats, fetching, leakage."""
