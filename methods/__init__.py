"""Published multi-stage methods and training-free baselines."""
