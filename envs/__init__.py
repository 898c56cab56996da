"""Search and scoring: indexes, retrievers, the service and its clients."""
