"""What is searched and what is asked? Corpora, questions and judgements."""
