"""Many systems, datasets and environments in one plan."""
