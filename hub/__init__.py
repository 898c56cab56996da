"""A trained rewriter leaves the house: export folders, model cards, the Hugging Face Hub."""
