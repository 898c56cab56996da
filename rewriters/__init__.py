"""What is the LLM asked, and how does its answer become a plan? One strategy, one file."""
