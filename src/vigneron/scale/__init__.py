"""Beyond one process: ranks that share weights, Ray actors that sample, embed and judge, a vLLM server that samples.

Nothing here imports Ray before it is asked for.
"""
