"""What does a trained rewriter look like elsewhere? Model folders, cards, and uploads to the Hub."""
