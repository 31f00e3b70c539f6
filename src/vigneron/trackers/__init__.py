"""TensorBoard, trackio and wandb, each in a process of its own: none of them can stop, slow or crash a run."""
