"""The rows that a run trains on, with the reference answers."""
