"""Run a model's Python code where it can do no harm: in bubblewrap or a container, under limits."""
