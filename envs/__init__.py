"""Which documents does a plan retrieve, and how is the ranking scored? Retrievers, indexes, service and client."""
