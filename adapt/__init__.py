"""From a folder of documents to a trained rewriter: every stage in one command."""
