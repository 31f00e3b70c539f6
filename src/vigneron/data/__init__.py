"""Datasets and their formats, the order of prompts, the built-in tasks."""
