"""Experiments on section 5 of the RLMT paper."""
