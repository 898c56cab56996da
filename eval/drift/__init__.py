"""Drift: how the successful queries of different retrievers differ in intent and wording."""
