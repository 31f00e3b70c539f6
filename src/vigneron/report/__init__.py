"""What a person sees of a run: the terminal, figures, the HTML report."""
