"""Which questions does a corpus answer? Language models write them and judge them; what is kept becomes an index."""
