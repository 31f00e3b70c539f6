"""Benchmarks of Vigneron against other libraries on the same work: `python -m benchmarks NAME`."""
