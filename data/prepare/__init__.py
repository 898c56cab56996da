"""Prepares a published benchmark: removes leaks and near-duplicates, writes a BEIR folder."""
