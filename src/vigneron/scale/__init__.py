"""What spreads a run over other processes and machines."""
