"""A reward model of preference pairs (`rlmt-grape` §4.4, eq. 5-6): the preferred text is to score higher.

Two texts, two passes, one batch: `reward: {kind: model, model: …}` is what it gives afterwards.
"""

from collections.abc import Sequence

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import RewardModelConfig
from vigneron.core.losses import bradley_terry
from vigneron.data.prompts import Row
from vigneron.methods.terms import pair_labels, pair_metrics, pair_term, sides
from vigneron.policy.reward_model import scores, scores_in_parts, set_reward_model_kind
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: RewardModelConfig) -> Method:
    policy, rollout = parts.policy, parts.rollout
    set_reward_model_kind(policy, "reward")

    def score(batch: Batch) -> Tensor:
        return scores(policy, batch)

    def loss(batch: Batch, scores_B: Tensor) -> list[Term]:
        """L = −log σ(R(w) − R(l))   (eq. 6), or eq. 5 with soft labels."""
        chosen_N, rejected_N = sides(scores_B)
        won, lost = chosen_N.detach(), rejected_N.detach()
        return [
            pair_term("loss/bradley_terry", bradley_terry(chosen_N, rejected_N, pair_labels(batch)), 1.0),
            pair_term("accuracy", (won > lost).to(won.dtype)),
            pair_term("margin", won - lost),
            pair_term("rewards/chosen", won),
            pair_term("rewards/rejected", lost),
        ]

    def evaluate(rows: Sequence[Row]) -> Metrics:
        batch = rollout(rows)
        chosen_N, rejected_N = sides(scores_in_parts(policy, batch, parts.config.resolved_microbatch_tokens))
        margin_N = (chosen_N - rejected_N).double()
        return pair_metrics(margin_N, margin_N.sigmoid(), bradley_terry(chosen_N, rejected_N, pair_labels(batch)))

    update = parts.gradient_update(score, loss)
    return Method(rollout, unchanged, unchanged, update, evaluate=evaluate)
