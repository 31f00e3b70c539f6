"""Direct preference optimization (`rlmt-grape` §4.9): a reward model's loss, of the policy's own log-probs.

π₀ is the reference, the policy at the run's start. `reference_free` is the paper's first form, without it. Pairs are
recorded preferences, or the best and the worst of a prompt's samples by any reward (`pairs: sampled`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.config import DpoConfig
from vigneron.core.losses import dpo
from vigneron.core.masked import masked_sum
from vigneron.methods.shared import pair_term, sides
from vigneron.policy.logprobs import Scores, reference_view, score
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.rollout.pairs import Pairs, paired_up
from vigneron.training.method import Method, Metrics, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options = config.method
    assert isinstance(options, DpoConfig)
    sampling = sampling_of(config)

    def advantage(batch: Batch) -> Batch:
        """No advantage: the pairs, and what the reference thinks of them."""
        batch = paired_up(batch) if options.pairs == "sampled" else batch
        count = int(batch.trained_BT.any(1).sum())
        before_BT = torch.zeros_like(batch.behaviour_BT)
        if count and not options.reference_free:
            seen_BT = map_parts(batch.rows(range(count)), config.tokens_at_once, look)["reference_BT"]
            before_BT = before_BT.to(seen_BT.dtype)
            before_BT[:count, : seen_BT.shape[1]] = seen_BT
        return replace(batch, reference_BT=before_BT)

    def look(part: Batch) -> dict[str, Tensor]:
        return reference_view(reference, part, sampling, keep_hidden=False)

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, sampling)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −log σ{β log(π₁(w)/π₀(w)) − β log(π₁(l)/π₀(l))}   (§4.9), of whole texts w and l."""
        logps_B = masked_sum(now.untruncated_BT, batch.mask_BT)
        before_B = masked_sum(batch.reference_BT, batch.mask_BT)  # 0 without a reference
        chosen_N, rejected_N = sides(logps_B)
        earned, lost = sides(options.beta * (logps_B - before_B).detach())
        return [
            pair_term("loss/dpo", dpo(chosen_N, rejected_N, *sides(before_B), beta=options.beta), 1.0),
            pair_term("rewards/chosen", earned),
            pair_term("rewards/rejected", lost),
            pair_term("rewards/accuracies", (earned > lost).to(earned.dtype)),
            pair_term("rewards/margins", earned - lost),
            pair_term("logps/chosen", chosen_N.detach()),
            pair_term("logps/rejected", rejected_N.detach()),
            Term("entropy" if options.pairs == "sampled" else "entropy/demonstrated", now.entropy_BT.detach()),
        ]

    players = players_of(config.optimizer, policy.trainable())
    update = GradientUpdate.of(config, 1, score_now, loss, players)
    if options.pairs == "sampled":
        sampled = OnPolicy.of(config, policy, sampling)
        return Method(sampled, parts.reward, advantage, update, explain=explain_no_pairs)
    recorded = Pairs(policy)
    return Method(
        rollout=recorded,
        reward=lambda batch: batch,
        advantage=advantage,
        update=update,
        evaluate=lambda rows: update.figures(advantage(recorded(rows))),
    )


def explain_no_pairs(metrics: Metrics) -> tuple[str, ...]:
    """Why nothing is learned from a step of which no group has two different rewards."""
    if metrics.get("pairs") != 0:
        return ()
    return (
        "in no group of this step do two rewards differ, so there is no pair to learn from: easier or harder prompts, "
        "a larger group_size or a higher temperature make them differ",
    )
