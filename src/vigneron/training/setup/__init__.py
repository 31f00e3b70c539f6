"""From a config to a run that is ready to train."""
