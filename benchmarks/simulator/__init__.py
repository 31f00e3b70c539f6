"""A run on machines that are not here: what it costs, and who waits for whom. Plain Python."""
