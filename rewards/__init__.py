"""How good is a ranking, a format, a trajectory? Pure functions."""
