"""The index folder: its documents, arrays and manifest; opening and verifying it."""
