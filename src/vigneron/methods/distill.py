"""On-policy distillation (GKD, Agarwal et al. 2024, with λ = 1): the child's own samples, a parent's distributions.

`loss: divergence` is GKD's generalised Jensen-Shannon divergence at each position of a sample, exact over the
vocabulary or over the parent's most likely tokens. `loss: sampled` has log parent − log child of each sampled token as
its advantage (reverse KL by the policy gradient, each token for itself): its mean over samples is the gradient of the
divergence with β = 1. Samples carry no gradient of their own, as in GKD: a token is not trained by what follows it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import DistillConfig
from vigneron.core.kl import k1
from vigneron.core.losses import policy_gradient
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.methods.terms import policy_metrics
from vigneron.policy.logprobs import ExactKl, Scores, TopKl, untruncated
from vigneron.policy.parent import LocalParent, vocabulary
from vigneron.policy.rank_batches import assign_ranks
from vigneron.rollout.build import sampling_rollout
from vigneron.training.method import Method, Metrics
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: DistillConfig) -> Method:
    parent, sampling = parts.parent, parts.sampling
    exact = ExactKl(parent.model, "parent_hidden_BTH") if isinstance(parent, LocalParent) else None
    kl: ExactKl | TopKl | None = None
    if options.loss == "divergence" and options.top_k is not None:
        check_count(options.top_k, parts)
        kl = TopKl(options.top_k, options.beta)
    elif options.loss == "divergence" and isinstance(parent, LocalParent):
        kl = ExactKl(parent.model, "parent_hidden_BTH", options.beta)

    def parent_pass(of: ExactKl | TopKl | None) -> Callable[[Batch], dict[str, Tensor]]:
        """What the parent has to say of the samples, for a divergence or for the sampled tokens alone."""
        if isinstance(of, TopKl):
            return partial(parent.top, sampling=sampling, count=of.count)
        if of is not None and isinstance(parent, LocalParent):
            return partial(parent.hidden, sampling=sampling)
        return partial(parent.logprobs, sampling=sampling)

    def advantage(batch: Batch) -> Batch:
        """Aₜ = log parent − log child of the sampled token, where the loss is `sampled`."""
        batch = batch.with_signals(reward_trains=False)
        if options.loss == "divergence":
            return batch.with_signals(**parts.precompute(batch, parent_pass(kl)))
        truncated = sampling != untruncated(sampling)  # the parent's log-probs are without top-k and top-p
        before = parts.precompute(batch, parent_pass(None), *([own_pass] if truncated else []))
        own_BT = before.pop("untruncated_BT") if truncated else batch.samples.behaviour_BT
        return batch.with_signals(**before, advantages_BT=-k1(own_BT, before["parent_BT"]))

    def own_pass(batch: Batch) -> dict[str, Tensor]:
        return {"untruncated_BT": parts.score(batch).untruncated_BT}

    def score(batch: Batch) -> Scores:
        return parts.score(batch, exact_kl=kl)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """D_β(parent, child), or −A log π."""
        sampled = options.loss == "sampled"
        values_BT = policy_gradient(now.logprobs_BT, batch.signals.advantages_BT) if sampled else now.exact_kl_BT
        return [
            Term("loss/distill", values_BT, 1.0, options.aggregation),
            Term("kl_parent", k1(now.untruncated_BT, batch.signals.parent_BT).detach(), first_update_only=True),
            *policy_metrics(batch, now),
        ]

    @torch.no_grad()
    def held_out_kl(rows: Sequence[Row]) -> Metrics:
        """KL(child ‖ parent) on samples of held-out prompts: exact, or by k1 where the parent is on a server."""
        batch = assign_ranks(sampling_rollout(parts.config, parts.policy, group_size=1, seed=parts.config.seed)(rows))
        batch = batch.with_signals(**parts.precompute(batch, parent_pass(exact)))

        def terms(part: Batch) -> list[Term]:
            now = parts.score(part, exact_kl=exact)
            values_BT = now.exact_kl_BT if exact is not None else k1(now.untruncated_BT, part.signals.parent_BT)
            return [Term("kl_parent", values_BT)]

        return {name: value for name, value, _ in update.accumulate(batch, terms)}

    update = parts.gradient_update(score, loss, after_update=parts.kl_previous)
    return Method(parts.rollout, parts.reward, advantage, update, evaluate_beside=held_out_kl)


def check_count(top_k: int, parts: Parts) -> None:
    """Raise where the parent and the child have fewer tokens in common than are compared."""
    parent = parts.parent
    policies = [parts.policy, *([parent.model.policy] if isinstance(parent, LocalParent) else [])]
    size = min(vocabulary(policy) for policy in policies)
    if top_k > size:
        raise UserError(
            f"method.top_k: {top_k} is more than the {size} tokens of the vocabulary: leave it out for the "
            "divergence over all of them"
        )
