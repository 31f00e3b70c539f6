"""GRAPE (`rlmt-grape` §6.1): GRPO on a rubric's reward, with responses that are fresh, revised or the dataset's own.

With fresh responses under the bare question, one item scored by a reward model and confidence 1, it is GRPO.

A response is trained behind its question, and π₀ of the ratio is the policy at the step's start behind that same text,
whatever the response was drawn under. So ratios begin at 1, as eq. 14 has them, and in the paper's form nothing
corrects for where the response came from: a revision that the bare question would hardly have led to is learned as if
it had. Options, each by itself, change this; the first two are the default (docs/results/rubric-study.md):

correction            weights of responses that were drawn under another prompt: TOPR's, or truncated ratios
baseline              a response is compared with those of its own origin
revise                only questions whose last group failed are revised
demonstration_gamma   LUFFY's loss for the dataset's answers
scaffold              RuscaRL's help, which fades within a group and over time
self_distillation     nothing is drawn with help: the policy that has seen it scores the tokens (SDPO)
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, where

from vigneron.batch import Batch, to_device
from vigneron.config import GrapeConfig
from vigneron.core.advantages import origin_relative
from vigneron.core.off_policy import luffy
from vigneron.errors import UserError
from vigneron.methods import grpo
from vigneron.policy.logprobs import Scores
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rollout.grape import ORIGINS, GrapeRollout, Mix
from vigneron.rollout.grape_memory import EarlierResponse, Memory
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rubric.prompts import feedback_of
from vigneron.training.grape_prompts import Prompts, Scaffold
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.self_distillation import with_hindsight
from vigneron.training.training_prompt import corrected, score_after_training_prompt


def build(parts: Parts, options: GrapeConfig) -> Method:
    reward = parts.reward.function  # type: ignore[attr-defined]
    assert isinstance(reward, RubricReward)
    assert isinstance(parts.rollout, OnPolicy)
    prompts, teacher = Prompts(reward.live_rubric), options.self_distillation
    _check(parts, options, prompts)

    def relative(batch: Batch, _: GrapeConfig) -> Tensor:
        """A = R − mean of the group (eq. 13 on eq. 15), or of the group's responses of the same origin."""
        if options.baseline == "group":
            return grpo.baseline(batch, options)
        of = (batch.signals.rewards_B, batch.samples.group_B, origins_of(batch), demonstrated(batch))
        return origin_relative(*of, scale="std" if options.scale_by_std else "none")

    def reshape(batch: Batch, now: Scores, losses_BT: Tensor) -> Tensor:
        """−A π/(π + γ) for the dataset's answers."""
        if options.demonstration_gamma is None:
            return losses_BT
        shaped_BT = luffy(now.logprobs_BT, batch.signals.advantages_BT, gamma=options.demonstration_gamma)
        return where(demonstrated(batch)[:, None], shaped_BT, losses_BT)

    plain = grpo.build(parts, options, advantages_of=relative, reshape=reshape)
    scaffold = None
    if options.scaffold is not None:
        config = parts.config
        scaffold = Scaffold(prompts, options.scaffold, config.group_size, config.steps, config.seed)
    rollout = GrapeRollout(
        parts.rollout,
        Mix(**options.mix.model_dump()),
        Memory(),
        prompts.generation if teacher is None else lambda row: row["prompt"],
        prompts.revision,
        options.trained_under,
        bool if options.revise == "all" else lambda earlier: bool(earlier) and failed(earlier, options),
        scaffold,
    )

    def advantage(batch: Batch) -> Batch:
        """The group's advantages, with log π₀ after the training prompt; then weights, or the tokens' own signal."""
        if teacher is None:
            rollout.memory.remember(batch, feedback_of)
        batch = plain.advantage(score_after_training_prompt(batch, parts))
        if teacher is not None:
            seen = prompts.hindsight(batch, teacher.sees)
            batch = with_hindsight(batch, seen, parts, teacher.coefficient, teacher.limit)
        elif options.correction != "none":
            batch = corrected(batch, options.correction)
        return batch.with_metrics(origin_metrics(batch))

    notices, explain = plain.notices, plain.explain
    if options.trained_under == "generation_prompt":
        notices = (*notices, "held-out prompts are answered without the generation prompt that is trained under")
    if teacher is not None and teacher.sees != "best":
        explain = lambda metrics: ()  # noqa: E731  (equal rewards still train)
    memory = rollout.memory if teacher is None else None
    return replace(plain, rollout=rollout, advantage=advantage, memory=memory, notices=notices, explain=explain)


def _check(parts: Parts, options: GrapeConfig, prompts: Prompts) -> None:
    """What only the rubric and the data can tell: an option without an effect."""
    shows = {
        "self_distillation.sees": options.self_distillation and options.self_distillation.sees,
        "scaffold.shows": options.scaffold and options.scaffold.shows,
    }
    for key, what in shows.items():
        if what == "generation_prompt" and not prompts.has_generation_prompt():
            raise UserError(
                f"method.{key}: generation_prompt has no effect: no category of the rubric has a `generate` prompt"
            )
    has_verdicts = parts.config.data.checker is not None or any(row.get("answer") for row in parts.curriculum.rows)
    if options.fails_by == "check" and not has_verdicts:
        raise UserError(
            "method.fails_by: check needs the checker's verdicts, but no row has an `answer`: add answers or "
            "`data.checker`, or set `fails_by: reward`"
        )


def failed(earlier: Sequence[EarlierResponse], options: GrapeConfig) -> bool:
    """Whether no fresh response of the last group was good enough."""
    if options.fails_by == "check":
        return not any(one.correct for one in earlier)
    return all(one.reward is None or one.reward < options.fails_below for one in earlier)


def origins_of(batch: Batch) -> Tensor:
    numbers = [ORIGINS.index(origin) for origin in batch.samples.extras["origin"]]
    return to_device(numbers, batch.samples.completion_BT.device)


def demonstrated(batch: Batch) -> Tensor:
    return origins_of(batch) == ORIGINS.index("demonstrated")


def origin_metrics(batch: Batch) -> dict[str, float]:
    """Of each origin in the batch: the mean reward, and the mean advantage of its trained tokens, weights included."""
    origins, rewards = batch.samples.extras["origin"], batch.signals.rewards_B.tolist()
    trained_BT, advantages_BT = batch.trained_BT.cpu(), batch.signals.advantages_BT.cpu()
    metrics: dict[str, float] = {}
    for origin in ORIGINS:
        at = [i for i, one in enumerate(origins) if one == origin]
        present = [rewards[i] for i in at if rewards[i] == rewards[i]]
        if present:
            metrics[f"origin/reward/{origin}"] = sum(present) / len(present)
        if at and trained_BT[at].any():
            metrics[f"origin/advantage/{origin}"] = float(advantages_BT[at][trained_BT[at]].mean())
    return metrics
