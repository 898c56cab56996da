"""Writes index folders: parts, shards, worker processes, and merging them."""
