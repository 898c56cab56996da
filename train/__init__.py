"""Training: GRPO on trees, credit assignment, packed rows, run folders, trackers."""
