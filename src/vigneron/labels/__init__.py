"""Human labels: the better of two completions, the best of a group, or the score of an answer under a rubric item."""
