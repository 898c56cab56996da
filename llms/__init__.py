"""How is a language model asked as it stands, wherever it runs?"""
