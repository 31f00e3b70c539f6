"""Experiments with the methods of section 5: docs/results/emerging.md."""
