"""Do retrievers want the same thing in other words?"""
