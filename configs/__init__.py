"""Which settings describe a run? Light on purpose: importing it loads no model library."""
