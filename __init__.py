"""querylect: train query rewriters by reinforcement learning against the retriever they will really use."""

__version__ = "0.1.0"
