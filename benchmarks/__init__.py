"""Vigneron beside its peers, on the same work: `python -m benchmarks NAME`."""
