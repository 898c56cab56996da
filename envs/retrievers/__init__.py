"""Kinds of retrievers: `base` holds the protocols, `registry` opens the kind that the settings name."""
