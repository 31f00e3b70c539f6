"""Sampling, judging and embedding outside of the training process."""
