"""Checkpoints: format, reading, writing, retention."""
