"""Question indexes: language models write questions for the contents of a corpus and judge which answer them."""
