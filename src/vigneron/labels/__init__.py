"""People's judgements: which of two completions is better, which of a group is best, what score an answer deserves."""
