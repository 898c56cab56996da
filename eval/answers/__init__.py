"""Full RAG: a reader answers from the documents of each system, and the answers are scored."""
