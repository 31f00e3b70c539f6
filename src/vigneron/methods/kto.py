"""KTO (Ethayarajh et al. 2024): texts labelled good or bad, one by one, where DPO needs pairs.

A text's log-ratio to the reference is compared with z₀, an estimate of KL(π ‖ reference): the mean log-ratio of the
step's completions, each behind the prompt of another row. It has no gradient.
"""

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import KtoConfig
from vigneron.core.losses import kto
from vigneron.core.masked import masked_sum
from vigneron.policy.logprobs import Scores
from vigneron.training.method import Method, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term

ONE_LABEL = (
    "every `{column}` is {label:g}: KTO compares good texts with bad ones, and with one kind alone it moves all texts "
    "the same way: add texts of the other kind"
)


def build(parts: Parts, options: KtoConfig) -> Method:
    def label(batch: Batch) -> Tensor:
        return torch.tensor(batch.samples.columns[options.label], device=batch.samples.completion_BT.device)

    def advantage(batch: Batch) -> Batch:
        """No advantage: the reference's log-probs, and z₀ as the value of every token."""
        batch = batch.with_signals(**parts.precompute(batch, parts.reference_pass))
        other = behind_other_prompts(batch, parts.policy.context_length)
        signals = parts.precompute(other, parts.policy_pass, parts.reference_pass)
        log_ratio_B = masked_sum(signals["behaviour_BT"] - signals["reference_BT"], other.samples.mask_BT)
        baseline = log_ratio_B.mean().clamp(min=0.0)
        batch = batch.with_signals(values_BT=torch.zeros_like(batch.signals.reference_BT) + baseline)
        return batch.with_metrics({"kto/baseline": float(baseline)})

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = λ_good (1 − σ(β (ρ − z₀))) or λ_bad (1 − σ(β (z₀ − ρ))), ρ = log π/π_ref of whole texts."""
        mask_BT, label_B = batch.samples.mask_BT, label(batch)
        logps_B, before_B = (masked_sum(x, mask_BT) for x in (now.logprobs_BT, batch.signals.reference_BT))
        baseline_B = batch.signals.values_BT[:, 0]
        good_B = kto(logps_B, before_B, torch.ones_like(label_B), baseline_B, beta=options.beta)
        bad_B = kto(logps_B, before_B, torch.zeros_like(label_B), baseline_B, beta=options.beta)
        values_B = options.desirable_weight * label_B * good_B + options.undesirable_weight * (1 - label_B) * bad_B
        above_B = logps_B.detach() - before_B > baseline_B
        return [
            Term("loss/kto", values_B, 1.0, "samples"),
            Term("rewards/accuracies", (above_B == (label_B >= 0.5)).to(logps_B.dtype), 0.0, "samples"),
            Term("entropy/demonstrated", now.entropy_BT.detach()),
        ]

    update = parts.gradient_update(parts.score, loss)
    only = {row[options.label] for row in parts.curriculum.rows}
    notices = (ONE_LABEL.format(column=options.label, label=next(iter(only))),) if only in ({0.0}, {1.0}) else ()
    return Method(
        parts.rollout,
        unchanged,
        advantage,
        update,
        evaluate=lambda rows: update.evaluate(advantage(parts.rollout(rows))),
        notices=notices,
    )


def behind_other_prompts(batch: Batch, limit: int | None) -> Batch:
    """Every completion behind the next row's prompt; behind its own where that would exceed the model's context."""
    samples = batch.samples
    prompts, spans = list(samples.prompt_ids), list(samples.spans)
    for row, other in enumerate([*samples.prompt_ids[1:], samples.prompt_ids[0]]):
        moved = len(other) - len(prompts[row])
        if limit is None or spans[row][-1][1] + moved <= limit:
            prompts[row] = other
            spans[row] = tuple((start + moved, stop + moved) for start, stop in spans[row])
    return batch.with_samples(prompt_ids=tuple(prompts), spans=tuple(spans))
