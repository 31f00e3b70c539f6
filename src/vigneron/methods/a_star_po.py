"""A*-PO (Brantley et al. 2025; `rlmt-grape` §5): V* from the reference's samples, then a regression on one sample.

Stage 0, before the first step: V* = β₁ log mean e^{r/β₁} over `reference_samples` samples of each training prompt
(methods/reference_samples.py). Each step after it: (β₂ log π/π_ref + V* − r)², of whole texts. At the start that is
REINFORCE with the baseline V*, scaled by 2β₂.
"""

import torch

from vigneron.batch import Batch
from vigneron.config.offline import AStarPoConfig
from vigneron.core.advantages import optimal_value
from vigneron.core.kl import k1
from vigneron.core.losses import a_star
from vigneron.core.masked import masked_sum
from vigneron.errors import UserError
from vigneron.methods.reference_samples import reference_rewards, row_key
from vigneron.methods.terms import entropy_bonus, policy_metrics
from vigneron.policy.logprobs import Scores
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: AStarPoConfig) -> Method:
    rows = parts.curriculum.rows
    rewards_PG = torch.tensor(reference_rewards(parts, options.reference_samples), dtype=torch.float64)
    rewards_PG = rewards_PG.view(len(rows), options.reference_samples)
    values = optimal_value(rewards_PG, beta=options.value_beta).tolist()
    if rows and rewards_PG.isnan().all():
        raise UserError(
            f"method: a_star_po: the reward is missing for all {rewards_PG.numel()} samples of the reference, so there "
            "is no V*: check the reward"
        )
    solved = (rewards_PG > 0).any(1).tolist()
    if rows and not any(solved) and len(rewards_PG[~rewards_PG.isnan()].unique()) < 2:
        raise UserError(
            f"method: a_star_po: the reference solves none of the {len(rows)} training prompts in "
            f"{options.reference_samples} samples each, so V* tells nothing: start from a model that solves some (SFT "
            "first), use easier prompts, or raise `method.reference_samples`"
        )
    if rows and not any(solved) and options.unsolved == "drop":
        raise UserError("method.unsolved: drop leaves no prompt: no sample of the reference has a reward above 0")
    of_row = {row_key(row): known for row, known in zip(rows, zip(values, solved, strict=True), strict=True)}

    def advantage(batch: Batch) -> Batch:
        """V* of each sample's prompt; a prompt without one, or unsolved and dropped, is not trained on."""
        columns, device = batch.samples.columns, batch.samples.completion_BT.device
        keys = [
            row_key({"prompt": prompt, **{name: column[at] for name, column in columns.items()}})
            for at, prompt in enumerate(batch.samples.prompts)
        ]
        if not all(key in of_row for key in keys):
            raise UserError(
                "method: a_star_po knows V* of the training rows alone: rollout and curriculum must keep them"
            )
        own = [of_row[key] for key in keys]
        values_B = torch.tensor([value for value, _ in own], dtype=torch.float32, device=device)
        dropped = [value != value or (options.unsolved == "drop" and not solved) for value, solved in own]
        excluded_B = torch.tensor(dropped, device=device)
        if batch.signals.excluded_B is not None:
            excluded_B = excluded_B | batch.signals.excluded_B
        signals = parts.precompute(batch, parts.reference_pass)
        known = [value for value, _ in own if value == value]
        metrics = {"value": sum(known) / len(known)} if known else {}
        return batch.with_signals(**signals, values_B=values_B, excluded_B=excluded_B).with_metrics(metrics)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = (β₂ log π/π_ref + V* − r)², of whole texts."""
        mask_BT, reference_BT = batch.samples.mask_BT, batch.signals.reference_BT
        logps_B, reference_B = (masked_sum(x, mask_BT) for x in (now.untruncated_BT, reference_BT))
        values_B = a_star(logps_B, reference_B, batch.signals.values_B, batch.signals.rewards_B, beta=options.beta)
        return [
            Term("loss/a_star", values_B, 1.0, "samples"),
            *entropy_bonus(now, options.entropy_coefficient, "tokens"),
            *policy_metrics(batch, now),
            Term("kl", k1(now.untruncated_BT, reference_BT).detach(), first_update_only=True),
        ]

    update = parts.gradient_update(parts.score, loss, after_update=parts.kl_previous)
    unsolved = len(rows) - sum(solved)
    how = "are not trained on" if options.unsolved == "drop" else "have the V* of failures alone"
    notices = (f"{unsolved} of {len(rows)} training prompts are unsolved by the reference and {how}",)
    return Method(parts.rollout, parts.reward, advantage, update, notices=notices if unsolved else ())
