"""Sampling, judging and embedding outside the training process: by Ray actors or a vLLM server."""
