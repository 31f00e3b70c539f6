"""Scoring flows that need no judge: each scores the samples of one rubric item."""
