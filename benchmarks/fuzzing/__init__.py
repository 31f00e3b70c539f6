"""Fuzzing with invalid input: slightly damaged files and garbage."""
