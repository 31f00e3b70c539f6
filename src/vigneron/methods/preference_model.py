"""A preference model (`rlmt-grape` §3): of a prompt and two texts in one sequence, the chance that the first is better.

Every pair is seen in both orders, so the order itself teaches nothing, and is judged in both: the mean counts.
`reward: {kind: preference, model: …}` is what it gives afterwards.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import PreferenceModelConfig
from vigneron.core.losses import preference_bce
from vigneron.data.prompts import Row
from vigneron.methods.terms import pair_labels, pair_metrics, sides
from vigneron.policy.reward_model import scores, scores_in_parts, set_reward_model_kind
from vigneron.rollout.pairs import soft_labels
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: PreferenceModelConfig) -> Method:
    policy, rollout = parts.policy, parts.rollout
    set_reward_model_kind(policy, "first_is_better")

    def score(batch: Batch) -> Tensor:
        return scores(policy, batch)

    def loss(batch: Batch, logit_B: Tensor) -> list[Term]:
        """L = −hp · log p − (1 − hp) · log(1 − p)   (§3), hp = 1 where the chosen text stands first; or soft."""
        chosen_first_B = torch.tensor(
            [first == "chosen" for first in batch.samples.columns["first"]], device=logit_B.device
        )
        preferred_B = chosen_first_B if (soft_B := soft_labels(batch)) is None else hp(soft_B, chosen_first_B)
        right_B = (logit_B.detach() > 0) == (preferred_B > 0.5)
        return [
            Term("loss/preference", preference_bce(logit_B, preferred_B), 1.0, "samples"),
            Term("accuracy", right_B.to(logit_B.dtype), 0.0, "samples"),
            Term("first_preferred", logit_B.detach().sigmoid(), 0.0, "samples"),
        ]

    def evaluate(rows: Sequence[Row]) -> Metrics:
        """Of both orders together: p is the mean of what each gives the chosen text."""
        batch = rollout(rows)
        first_N, second_N = sides(scores_in_parts(policy, batch, parts.config.resolved_microbatch_tokens).double())
        p_N = (first_N.sigmoid() + (-second_N).sigmoid()) / 2
        soft_N = pair_labels(batch)
        labels_N = torch.ones_like(first_N) if soft_N is None else soft_N
        losses_N = (preference_bce(first_N, labels_N) + preference_bce(-second_N, labels_N)) / 2
        return pair_metrics((first_N - second_N) / 2, p_N, losses_N)

    update = parts.gradient_update(score, loss)
    return Method(rollout, unchanged, unchanged, update, evaluate=evaluate)


def hp(soft_B: Tensor, chosen_first_B: Tensor) -> Tensor:
    """The probability that the first text is better, from that of the chosen one."""
    return torch.where(chosen_first_B, soft_B, 1 - soft_B)
