"""Programs that run in a sandbox, with the standard library only: a response's code in one process, its test in one.

They exchange lines of JSON through the runner: `border.py` says how values and calls cross.
"""
