"""Rubrics (`rlmt-grape` §6): what a good answer is, category by category, in a file that a person writes."""
