"""A simulator of runs on other machines: costs and waiting times. Plain Python."""
