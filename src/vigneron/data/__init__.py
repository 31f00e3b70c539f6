"""Datasets and their formats, the order of prompts, built-in tasks."""
