"""Ranks of a run: launch, collective operations, facts about nodes."""
