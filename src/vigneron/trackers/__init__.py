"""TensorBoard, trackio and wandb, each in a separate process, so that none can stop, slow down or crash a run."""
