"""Beyond one process: Ray actors that sample, embed and judge. Nothing here imports Ray before it is asked for."""
