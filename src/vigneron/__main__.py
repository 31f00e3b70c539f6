"""`python -m vigneron` is the command line."""

from vigneron.cli.main import main

if __name__ == "__main__":
    main()
