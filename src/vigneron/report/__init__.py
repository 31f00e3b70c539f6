"""Output for people: the terminal view, plots, tables, the HTML report."""
