"""How is an environment served? The HTTP app, its batching, limits and processes."""
