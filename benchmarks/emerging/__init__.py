"""Experiments on section 5 of the RLMT paper: docs/results/emerging.md."""
