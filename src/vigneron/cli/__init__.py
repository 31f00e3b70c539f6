"""Parses the command line; `commands/` does the work."""
