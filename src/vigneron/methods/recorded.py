"""What TOPR and OREO share: recorded samples whose rewards stand in the data."""

import torch

from vigneron.batch import Batch
from vigneron.policy.logprobs import Scores
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def recorded_rewards(batch: Batch, column: str) -> Batch:
    """The reward slot of recorded samples: their scores."""
    scores = torch.tensor(batch.samples.columns[column], dtype=torch.float32)
    return batch.with_signals(rewards_B=scores.to(batch.samples.completion_BT.device))


def with_behaviour(batch: Batch, parts: Parts) -> Batch:
    """`behaviour_BT` of samples without recorded log-probs: those of the reference, the policy at the run's start."""
    unknown = (batch.samples.behaviour_BT.isnan() & batch.samples.mask_BT).any(1).nonzero()[:, 0].tolist()
    if not unknown:
        return batch
    # All samples are passed: ranks share a batch by samples.
    reference_BT = parts.precompute(batch, parts.reference_pass)["reference_BT"]
    behaviour_BT = batch.samples.behaviour_BT.clone()
    behaviour_BT[unknown] = reference_BT[unknown].to(behaviour_BT.dtype)
    return batch.with_samples(behaviour_BT=behaviour_BT)


def text_entropy(now: Scores) -> Term:
    """The policy's entropy along given texts."""
    return Term("entropy/demonstrated", now.entropy_BT.detach(), first_update_only=True)
