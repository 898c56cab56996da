"""How do other frameworks call a trained rewriter?"""
