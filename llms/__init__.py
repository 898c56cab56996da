"""How is a prompted (frozen) language model asked, at an endpoint or in this process?"""
