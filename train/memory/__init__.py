"""Memory estimates of training runs."""
