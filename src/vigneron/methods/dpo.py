"""Direct preference optimization (`rlmt-grape` §4.9): a reward model's loss, of the policy's own log-probs.

π₀ is the reference, the policy at the run's start. `reference_free` is the paper's first form, without it. Pairs are
recorded preferences, or the best and the worst of a prompt's samples by any reward (`pairs: sampled`).
"""

import torch

from vigneron.batch import Batch
from vigneron.config import DpoConfig
from vigneron.core.losses import dpo
from vigneron.core.masked import masked_sum
from vigneron.methods.terms import pair_labels, pair_term, sides
from vigneron.policy.logprobs import Scores
from vigneron.rollout.pairs import paired_up
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: DpoConfig) -> Method:
    sampled = options.pairs == "sampled"

    def advantage(batch: Batch) -> Batch:
        """No advantage: the pairs, and the reference's log-probs of them."""
        batch = paired_up(batch) if sampled else batch
        count = int(batch.trained_BT.any(1).sum())
        before_BT = torch.zeros_like(batch.samples.behaviour_BT)
        if count and not options.reference_free:
            measured_BT = parts.precompute(batch.rows(range(count)), parts.reference_pass)["reference_BT"]
            before_BT = before_BT.to(measured_BT.dtype)
            before_BT[:count, : measured_BT.shape[1]] = measured_BT
        return batch.with_signals(reference_BT=before_BT)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −log σ{β log(π₁(w)/π₀(w)) − β log(π₁(l)/π₀(l))}   (§4.9), of whole texts w and l; with soft labels the
        mix of both orders."""
        logps_B = masked_sum(now.untruncated_BT, batch.samples.mask_BT)
        before_B = masked_sum(batch.signals.reference_BT, batch.samples.mask_BT)  # 0 without a reference
        chosen_N, rejected_N = sides(logps_B)
        labels_N = None if sampled else pair_labels(batch)
        won, lost = sides(options.beta * (logps_B - before_B).detach())
        return [
            pair_term(
                "loss/dpo", dpo(chosen_N, rejected_N, *sides(before_B), beta=options.beta, preferred_N=labels_N), 1.0
            ),
            pair_term("rewards/chosen", won),
            pair_term("rewards/rejected", lost),
            pair_term("rewards/accuracies", (won > lost).to(won.dtype)),
            pair_term("rewards/margins", won - lost),
            pair_term("logps/chosen", chosen_N.detach()),
            pair_term("logps/rejected", rejected_N.detach()),
            Term("entropy" if sampled else "entropy/demonstrated", now.entropy_BT.detach()),
        ]

    update = parts.gradient_update(parts.score, loss)
    if sampled:
        return Method(parts.rollout, parts.reward, advantage, update, explain=explain)
    return Method(
        parts.rollout,
        unchanged,
        advantage,
        update,
        evaluate=lambda rows: update.evaluate(advantage(parts.rollout(rows))),
    )


def explain(metrics: Metrics) -> tuple[str, ...]:
    """Why a step trains nothing if no group has two different rewards."""
    if metrics.get("pairs") != 0:
        return ()
    return (
        "in no group of this step do two rewards differ, so there is no pair to train on: easier or harder prompts, "
        "a larger group_size or a higher temperature make them differ",
    )
