"""Training with several processes: synchronization, errors, signals, DeepSpeed."""
