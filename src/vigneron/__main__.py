"""`python -m vigneron` is the command line."""

from vigneron.cli import main

if __name__ == "__main__":
    main()
