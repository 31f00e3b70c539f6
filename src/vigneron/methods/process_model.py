"""A process reward model (`rlmt-grape` §5; Lightman et al. 2023): each step's label at the step's last token.

Binary cross-entropy; a label between 0 and 1 is the share of continuations that end right. The outcome model is its
last step alone (`steps: last`), and `score_model` the same with a column of scores. `reward: {kind: process, model: …}`
is what it gives afterwards.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import ProcessModelConfig
from vigneron.core.losses import preference_bce
from vigneron.data.prompts import Row, completion_text
from vigneron.data.steps import step_ends
from vigneron.policy.rank_batches import map_microbatches
from vigneron.policy.reward_model import scores_at, set_reward_model_kind, spread_scores
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term

Places = Sequence[Sequence[tuple[int, float | None]]]
"""For each sample, tokens with their labels; None: unclear."""


def build(parts: Parts, options: ProcessModelConfig) -> Method:
    last = options.steps == "last"
    set_reward_model_kind(parts.policy, "reward" if last else "process", options.separator)

    def places(batch: Batch) -> Places:
        samples = batch.samples
        ids, texts = samples.completion_lists(), [completion_text(text) for text in samples.completions]
        labels = samples.columns[options.labels]
        if last:
            return [[(len(row) - 1, given[-1])] for row, given in zip(ids, labels, strict=True)]
        ends = step_ends(parts.policy.tokenizer, ids, texts, options.separator, samples.truncated_B.tolist())
        return [list(zip(row, given, strict=False)) for row, given in zip(ends, labels, strict=True)]

    return token_label_method(parts, places)


def token_label_method(parts: Parts, places: Callable[[Batch], Places]) -> Method:
    """A model of one number a token, trained where labels are."""
    policy, rollout = parts.policy, parts.rollout

    def advantage(batch: Batch) -> Batch:
        """No advantage: the labels, NaN where there is none, and weights with which samples' sums are a mean over all
        labels of the step."""
        labels_BT = labels_of(batch, places(batch))
        known_BT = ~labels_BT.isnan()
        weights_BT = known_BT.to(labels_BT.dtype) * (len(batch) / known_BT.sum().clamp(min=1))
        return batch.with_signals(returns_BT=labels_BT, values_BT=weights_BT)

    def score(batch: Batch) -> Tensor:
        return scores_at(policy, batch, ~batch.signals.returns_BT.isnan())

    def loss(batch: Batch, logit_N: Tensor) -> list[Term]:
        """L = −s log p − (1 − s) log(1 − p), p = σ(R at the step's last token)."""
        known_BT = ~batch.signals.returns_BT.isnan()
        labels_N, row_N = batch.signals.returns_BT[known_BT], known_BT.nonzero()[:, 0]

        def by_sample(values_N: Tensor) -> Tensor:
            weighted_N = values_N * batch.signals.values_BT[known_BT].to(values_N.dtype)
            return values_N.new_zeros(len(batch)).index_add(0, row_N, weighted_N)

        error_N = (logit_N.detach().sigmoid() - labels_N).abs()
        loss_B, weights_B = by_sample(preference_bce(logit_N, labels_N)), by_sample(torch.ones_like(logit_N))
        return [
            Term("loss/score", loss_B, 1.0, "samples", weights=weights_B.detach()),
            Term("score_error", by_sample(error_N), 0.0, "samples"),
        ]

    def scores_of(batch: Batch) -> dict[str, Tensor]:
        known_BT = ~batch.signals.returns_BT.isnan()
        return {"scores_BT": spread_scores(scores_at(policy, batch, known_BT), known_BT)}

    @torch.no_grad()
    def evaluate(rows: Sequence[Row]) -> Metrics:
        batch = advantage(rollout(rows))
        labels_BT = batch.signals.returns_BT
        known_BT = ~labels_BT.isnan()
        scores_BT = map_microbatches(batch, parts.config.resolved_microbatch_tokens, scores_of)["scores_BT"]
        logit_N, labels_N = scores_BT[known_BT].double(), labels_BT[known_BT].double()
        agrees_N = (logit_N >= 0) == (labels_N >= 0.5)
        return {
            "loss": float(preference_bce(logit_N, labels_N).mean()),
            "score_error": float((logit_N.sigmoid() - labels_N).abs().mean()),
            "accuracy": float(agrees_N.double().mean()),
        }

    update = parts.gradient_update(score, loss)
    return Method(rollout, unchanged, advantage, update, evaluate=evaluate)


def labels_of(batch: Batch, places: Places) -> Tensor:
    """Labels by token, NaN without one. Steps that end in the same token share it: it is as right as the worst of
    them."""
    completion_BT = batch.samples.completion_BT
    labels = [[math.nan] * completion_BT.shape[1] for _ in places]
    for row, given in zip(labels, places, strict=True):
        for token, label in given:
            if label is not None:
                row[token] = label if math.isnan(row[token]) else min(row[token], label)
    return torch.tensor(labels, device=completion_BT.device)
