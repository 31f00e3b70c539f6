"""Several processes, several machines."""
