"""Sizes of blocks that bound the memory of an update; also read by the memory estimate, which imports no torch."""

HEAD_CHUNK = 1 << 24
"""Maximum number of logits held at a time: a tile of 64 MiB in float32, and up to eight copies of it on a CPU."""
BLOCK = 256
"""Number of queries of packed attention that share one set of gathered keys."""
HEAD_TOKENS = 4096
"""Number of tokens of such a tile: TOKEN_CHUNK_SIZE of TRL's kernel."""
