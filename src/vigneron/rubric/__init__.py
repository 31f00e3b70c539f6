"""Rubrics (`rlmt-grape` §6): YAML files that say, category by category, what a good answer is."""
