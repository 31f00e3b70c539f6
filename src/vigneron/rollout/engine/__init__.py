"""The sampling engine."""
