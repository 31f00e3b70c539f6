"""TOPR (Le Roux et al. 2025; `rlmt-grape` §5): REINFORCE on samples of another policy μ, tapered where it is bad.

−w R log π(y) of whole texts; w is 1 where R ≥ 0, else min(1, π(y)/μ(y)), so that a bad text that the policy no longer
writes is not pushed further down. μ is recorded with the samples; where it is not, it is the reference. No KL.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config.offline import ToprConfig
from vigneron.core.advantages import group_relative
from vigneron.core.losses import topr
from vigneron.core.masked import masked_sum
from vigneron.core.off_policy import topr_weight
from vigneron.data.prompts import prompt_text
from vigneron.errors import UserError
from vigneron.methods.recorded import recorded_rewards, text_entropy, with_behaviour
from vigneron.methods.terms import explain_equal_rewards, policy_metrics, with_advantages
from vigneron.policy.logprobs import Scores
from vigneron.training.method import Method, Metrics
from vigneron.training.parts import Parts
from vigneron.training.update import Term

NO_NEGATIVES = (
    "no reward is negative, so TOPR is REINFORCE without its taper: for rewards from 0 to 1 set `method.rewards: "
    "signed` (2R − 1), or `advantage` (R minus the mean of the prompt's samples)"
)


NO_NEGATIVES_SIGNED = (
    "no reward is below 0.5, so 2R − 1 is never negative and TOPR is REINFORCE without its taper: add samples with "
    "lower rewards, or set `method.rewards: advantage` (R minus the mean of the prompt's samples)"
)
ALL_EQUAL = (
    "all samples of a prompt have the same reward, so R minus their mean is 0 and nothing is trained: add samples with "
    "other rewards, or set `method.rewards` to `as_given` or `signed`"
)


def build(parts: Parts, options: ToprConfig) -> Method:
    recorded = options.samples == "recorded"
    means = prompt_means(parts, options.reward_column) if recorded and options.rewards == "advantage" else {}

    def centred(batch: Batch) -> Tensor:
        """R as the loss uses it."""
        rewards_B = batch.signals.rewards_B
        if options.rewards == "signed":
            if ((rewards_B < 0) | (rewards_B > 1)).any():
                raise UserError("method.rewards: signed is for rewards from 0 to 1, and this reward leaves that range")
            return 2 * rewards_B - 1
        if options.rewards == "advantage" and recorded:
            return rewards_B - rewards_B.new_tensor([means[prompt_text(prompt)] for prompt in batch.samples.prompts])
        if options.rewards == "advantage":
            return group_relative(batch.trained_rewards_B, batch.samples.group_B)
        return rewards_B

    def advantage(batch: Batch) -> Batch:
        return with_advantages(with_behaviour(batch, parts) if recorded else batch, centred(batch))

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −w R log π, of whole texts."""
        mask_BT = batch.samples.mask_BT
        logps_B, behaviour_B = (masked_sum(x, mask_BT) for x in (now.logprobs_BT, batch.samples.behaviour_BT))
        rewards_B = batch.signals.advantages_BT[:, 0]
        # Without the taper μ is π itself: every ratio is 1.
        behaviour_B = behaviour_B if options.taper else logps_B.detach()
        negative_B = (rewards_B < 0).to(logps_B.dtype)
        return [
            Term("loss/topr", topr(logps_B, behaviour_B, rewards_B), 1.0, "samples"),
            Term("topr/negative", negative_B, 0.0, "samples"),
            Term("topr/weight", topr_weight(logps_B, behaviour_B, rewards_B), 0.0, "samples"),
            *([text_entropy(now)] if recorded else policy_metrics(batch, now)),
        ]

    update = parts.gradient_update(
        parts.score,
        loss,
        updates_per_step=options.updates_per_step,
        after_update=None if recorded else parts.kl_previous,
    )
    if not recorded:
        return Method(parts.rollout, parts.reward, advantage, update, explain=partial(explain, options))
    scores = [(means.get(prompt_text(row["prompt"]), 0.0), row[options.reward_column]) for row in parts.curriculum.rows]
    reward = partial(recorded_rewards, column=options.reward_column)
    return Method(parts.rollout, reward, advantage, update, notices=recorded_notices(options.rewards, scores))


def recorded_notices(rewards: str, scores: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """What is wrong with rewards as a whole; `scores` has for each sample its prompt's mean and its own score."""
    if rewards == "advantage":
        return (ALL_EQUAL,) if all(abs(score - mean) < 1e-9 for mean, score in scores) else ()
    if rewards == "signed":
        return (NO_NEGATIVES_SIGNED,) if all(score >= 0.5 for _, score in scores) else ()
    return (NO_NEGATIVES,) if all(score >= 0 for _, score in scores) else ()


def prompt_means(parts: Parts, score: str) -> dict[str, float]:
    """The mean recorded reward of each prompt."""
    scores: dict[str, list[float]] = defaultdict(list)
    for row in parts.curriculum.rows:
        scores[prompt_text(row["prompt"])].append(row[score])
    return {prompt: sum(values) / len(values) for prompt, values in scores.items()}


def explain(options: ToprConfig, metrics: Metrics) -> tuple[str, ...]:
    if options.rewards == "advantage":
        return explain_equal_rewards(metrics)
    no_negatives = NO_NEGATIVES if options.rewards == "as_given" else NO_NEGATIVES_SIGNED
    return (no_negatives,) if metrics.get("topr/negative") == 0.0 else ()
