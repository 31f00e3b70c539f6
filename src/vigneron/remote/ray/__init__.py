"""Sampling, judging and embedding by Ray actors. Ray is imported when it is used."""
