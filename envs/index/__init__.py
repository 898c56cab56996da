"""The index folder: building, sharding, opening and verifying it."""
