"""A reward model of people's scores (`rlmt-grape` §6.1, reward fine-tuning): answers with scores or labels.

Binary cross-entropy, with the score as the share of people who would accept the answer. In a rubric it takes its place
as an item: `{flow: reward_model, model: runs/NAME, squash: sigmoid}`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import ScoreModelConfig
from vigneron.core.losses import preference_bce
from vigneron.data.prompts import Row
from vigneron.policy.reward_model import scores, scores_in_parts, set_reward_model_kind
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: ScoreModelConfig) -> Method:
    policy, rollout = parts.policy, parts.rollout
    set_reward_model_kind(policy, "reward")

    def wanted(batch: Batch) -> Tensor:
        return torch.tensor(batch.samples.columns[options.score], device=batch.samples.completion_BT.device)

    def score(batch: Batch) -> Tensor:
        return scores(policy, batch)

    def loss(batch: Batch, logit_B: Tensor) -> list[Term]:
        """L = −s log p − (1 − s) log(1 − p), p = σ(R)."""
        return [
            Term("loss/score", preference_bce(logit_B, wanted(batch)), 1.0, "samples"),
            Term("score_error", (logit_B.detach().sigmoid() - wanted(batch)).abs(), 0.0, "samples"),
        ]

    def evaluate(rows: Sequence[Row]) -> Metrics:
        batch = rollout(rows)
        logit_B = scores_in_parts(policy, batch, parts.config.resolved_microbatch_tokens).double()
        score_B, p_B = wanted(batch).double(), logit_B.sigmoid()
        agrees_B = (p_B >= 0.5) == (score_B >= 0.5)
        return {
            "loss": float(preference_bce(logit_B, score_B).mean()),
            "score_error": float((p_B - score_B).abs().mean()),
            "accuracy": float(agrees_B.double().mean()),
        }

    update = parts.gradient_update(score, loss)
    return Method(rollout, unchanged, unchanged, update, evaluate=evaluate)
