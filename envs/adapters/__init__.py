"""Adapters of the environment to other training libraries, one module each."""
