"""The version of this package, also in what it writes."""

__version__ = "0.1.0"
