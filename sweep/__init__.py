"""How do runs of one config that differ in some settings compare? One after another, or as a job array."""
