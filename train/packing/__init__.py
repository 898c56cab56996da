"""Training on packed trees: packed rows, their attention, and the check against flat rows."""
