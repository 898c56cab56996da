"""What does a trained rewriter do for a user? Questions in, rewrites, plans and rankings out."""
