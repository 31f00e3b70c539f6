"""Direct preference optimization (`rlmt-grape` §4.9): a reward model's loss, of the policy's own log-probs.

π₀ is the reference, the policy at the run's start. `reference_free` is the paper's first form, without it. Pairs are
recorded preferences, or the best and the worst of a prompt's samples by any reward (`pairs: sampled`). `loss` has the
forms that people compare it with: IPO, SimPO and ORPO.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import DpoConfig
from vigneron.core.losses import dpo, ipo, orpo, simpo
from vigneron.core.masked import masked_sum
from vigneron.methods.terms import pair_term, sides
from vigneron.policy.logprobs import Scores
from vigneron.rollout.pairs import paired_up, soft_labels
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: DpoConfig) -> Method:
    sampled, beta = options.pairs == "sampled", options.beta

    def advantage(batch: Batch) -> Batch:
        """No advantage: the pairs, and the reference's log-probs of them."""
        batch = paired_up(batch) if sampled else batch
        count = int(batch.trained_BT.any(1).sum())
        before_BT = torch.zeros_like(batch.samples.behaviour_BT)
        if count and options.uses_reference:
            measured_BT = parts.precompute(batch.rows(range(count)), parts.reference_pass)["reference_BT"]
            before_BT = before_BT.to(measured_BT.dtype)
            before_BT[:count, : measured_BT.shape[1]] = measured_BT
        return batch.with_signals(reference_BT=before_BT)

    def objective(logps_B: Tensor, before_B: Tensor, tokens_B: Tensor) -> tuple[list[Term], Tensor]:
        """The loss of each pair of texts w and l, and the implicit reward of each text."""
        if options.loss == "dpo":  # −log σ{β log(π₁(w)/π₀(w)) − β log(π₁(l)/π₀(l))}   (§4.9)
            losses_N = dpo(*sides(logps_B), *sides(before_B), beta=beta)
            return [pair_term("loss/dpo", losses_N, 1.0)], beta * (logps_B - before_B)
        mean_B = (logps_B - before_B) / tokens_B
        if options.loss == "ipo":  # of means over tokens, as its authors and TRL have it
            losses_N = ipo(*sides(logps_B / tokens_B), *sides(before_B / tokens_B), beta=beta)
            return [pair_term("loss/ipo", losses_N, 1.0)], beta * mean_B
        if options.loss == "simpo":
            losses_N = simpo(*sides(logps_B), *sides(tokens_B), beta=beta, gamma=options.gamma)
            return [pair_term("loss/simpo", losses_N, 1.0)], beta * mean_B
        likelihood = pair_term("loss/nll", -sides(mean_B)[0], 1.0)
        return [likelihood, pair_term("loss/orpo", orpo(*sides(mean_B)), beta)], beta * mean_B

    def loss(batch: Batch, now: Scores) -> list[Term]:
        mask_BT = batch.samples.mask_BT
        logps_B = masked_sum(now.untruncated_BT, mask_BT)
        before_B = masked_sum(batch.signals.reference_BT, mask_BT)  # 0 without a reference
        measured = (logps_B, before_B, mask_BT.sum(1).clamp(min=1))
        terms, rewards_B = objective(*measured)
        if not sampled and (labels_B := soft_labels(batch)) is not None:
            terms = soft(terms, objective(*map(turned, measured))[0], labels_B)
        won, lost = sides(rewards_B.detach())
        chosen_N, rejected_N = sides(logps_B.detach())
        return [
            *terms,
            pair_term("rewards/chosen", won),
            pair_term("rewards/rejected", lost),
            pair_term("rewards/accuracies", (won > lost).to(won.dtype)),
            pair_term("rewards/margins", won - lost),
            pair_term("logps/chosen", chosen_N),
            pair_term("logps/rejected", rejected_N),
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


def turned(values_B: Tensor) -> Tensor:
    """Of a paired batch, with the two texts of every pair exchanged."""
    return values_B.view(-1, 2).flip(1).reshape(-1)


def soft(terms: Sequence[Term], turned_terms: Sequence[Term], labels_B: Tensor) -> list[Term]:
    """The mix of both orders by the probability that the chosen text is better (of DPO's: conservative DPO)."""
    return [
        replace(one, values=labels_B * one.values + (1 - labels_B) * other.values)
        for one, other in zip(terms, turned_terms, strict=True)
    ]


def explain(metrics: Metrics) -> tuple[str, ...]:
    """Why a step trains nothing if no group has two different rewards."""
    if metrics.get("pairs") != 0:
        return ()
    return (
        "in no group of this step do two rewards differ, so there is no pair to train on: easier or harder prompts, "
        "a larger group_size or a higher temperature make them differ",
    )
