"""TensorBoard, trackio, wandb and a webhook, each in its own process: none can stop, slow down or crash a run."""
