"""What comes back for a plan, and what is it worth? Retrievers, indexes, the HTTP service and its client."""
