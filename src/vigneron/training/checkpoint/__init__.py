"""Checkpoints: format, reading, writing, deletion of old ones."""
