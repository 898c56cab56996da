"""What do published multi-stage methods do? Their stages, and the runner that batches them."""
