"""Graders: each scores samples for one rubric item. Imported only when a rubric is used."""
