"""The index folder: its documents, arrays and meta.json; opening and verifying it."""
