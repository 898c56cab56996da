"""How does a tree become a better policy?"""
