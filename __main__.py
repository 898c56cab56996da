"""`python -m querylect` is the same command as `querylect`."""

from .cli import main

if __name__ == "__main__":
    main()
