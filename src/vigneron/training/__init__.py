"""The loop, the update, the run's folder, checkpoints."""
