"""Weights that ranks share, by FSDP2."""

from vigneron.policy.model import Policy, Reference


def shard_policies(policy: Policy, reference: Reference, shard: int) -> None:
    """Each rank keeps a part of every decoder layer's matrices. 1: nothing is sharded."""
    if shard == 1:
        return
    raise NotImplementedError
