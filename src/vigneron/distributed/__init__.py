"""Multi-process runs: launcher, collective operations, versions installed on each node."""
