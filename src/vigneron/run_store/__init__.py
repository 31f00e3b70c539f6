"""A run's folder: samples, status, metrics, curves."""
