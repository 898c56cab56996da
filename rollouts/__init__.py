"""How does a question grow into a tree of turns?"""
