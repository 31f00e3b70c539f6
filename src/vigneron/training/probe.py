"""A probe of a recipe before training: a few hundred samples of its model, checked and rewarded."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config, GrapeConfig
from vigneron.core.advantages import share_without_variance
from vigneron.core.intervals import wilson
from vigneron.data.prompts import Row, completion_text, prompt_text
from vigneron.errors import UserError
from vigneron.policy.device import resolve_device, use_device
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.policy.model import Policy
from vigneron.policy.token_boundaries import answer_lengths
from vigneron.rewards.apply import SEEN, ApplyReward, RewardFunction
from vigneron.rewards.build import attach_models, build_reward
from vigneron.rewards.checkers import build_run_check, load_checker
from vigneron.rewards.combined import CombinedReward, ignore
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rewards.user_reward import RewardFailed, checked_rewards, named_errors, started
from vigneron.rollout.build import Rollout, build_rollout
from vigneron.rollout.grape import GrapeRollout, Mix
from vigneron.rollout.grape_memory import Memory
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rubric.prompts import feedback_of
from vigneron.run_data.load import Data
from vigneron.run_data.readers import checker_name
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.text import share_in
from vigneron.timing import phase
from vigneron.training.conversation_alerts import conversation_warnings
from vigneron.training.grape_prompts import Prompts
from vigneron.training.setup.resolve import newest_weights

GROUP = 8
"""Samples of a prompt, where the recipe draws one."""
ECHO = 0.9
"""A text with this share of its words from the input is an echo."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What samples earn: hits and the mean reward."""

    hits: int
    checked: int
    """Samples that the checker could judge."""
    reward: float

    @property
    def p0(self) -> float:
        return self.hits / self.checked if self.checked else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95 %. The samples of a prompt are not independent, so the true one is wider."""
        return wilson(self.hits, self.checked)


@dataclass(frozen=True, kw_only=True)
class Probe(Sampled):
    """What the samples show. Shares are of all samples unless it says otherwise; NaN where nothing was measured."""

    prompts: int
    groups: int
    """As many as prompts, or more: few prompts are sampled again."""
    group_size: int
    hits_by_prompt: tuple[int, ...]
    """Of groups all of whose samples were judged."""
    missed: float
    """The mean reward of the samples that are no hits."""
    spread: float
    """The mean over prompts of the standard deviation of a prompt's rewards."""
    flat: float
    """Share of prompts whose rewards are all equal."""
    cut: float
    """Share cut by `max_new_tokens`."""
    lines: float
    """Share of the cut ones that went on after a line of text: a newline as stop text would have ended them."""
    echoed: float
    answers_echo: float
    """Share of the reference answers that are echoes of their input, as in copying."""
    answer_tokens: int
    """The 95th percentile of the reference answers' tokens; 0 without answers."""
    answer_words: int
    """The median of their words."""
    multiline: bool
    """Whether a reference answer has several lines."""
    pays_empty: float
    pays_echo: float
    pays_answer: float
    """Mean rewards of an empty text, of the input and of the reference answer in place of completions."""
    prompted: Sampled | None = None
    """Of GRAPE: as many samples drawn with the rubric's `generate` prompts; None if it has none."""
    revised: Sampled | None = None
    """Of GRAPE: revisions of the wrong ones among these; None if it revises none, or none was wrong."""

    @property
    def samples(self) -> int:
        return self.groups * self.group_size


def probe(config: Config, data: Data, samples: int, notice: Callable[[str], None] = lambda text: None) -> Probe:
    """Sample a resolved recipe's model on training prompts that are spread evenly over the data; if there are too few,
    several times."""
    check_samples(config)
    group_size = config.group_size if config.group_size > 1 else GROUP
    groups = max(1, samples // group_size)
    rows = spread_rows(data.train, min(len(data.train), groups))
    rows = list(with_parent_answers(config, Data(rows, []), notice).train)
    prompts, rows = len(rows), spread_rows(rows, groups)
    use_device(resolve_device(config.model.device))
    function = reward_of(config, data.train if config.parent is None else rows, notice)
    with closing(ApplyReward.of(config, function)) as reward:
        seed_everything(config.seed)
        with phase("load the model"):
            policy = policy_from_config(config)
        attach_models(function, policy)
        rollout = build_rollout(config.model_copy(update={"group_size": group_size}), policy)
        check = build_run_check(config, checker_name(config))

        def sampled(by: Rollout, of: Sequence[Row]) -> Batch:
            with phase("sample"):
                batch = by(of)
            return check(reward(batch, whole_step=False))

        batch, prompted, revised = sampled(rollout, rows), None, None
        for text in conversation_warnings(batch, config).values():
            notice(text)
        if isinstance(function, RubricReward) and isinstance(rollout, OnPolicy):
            prompted, revised = _with_rubric(config, Prompts(function.live_rubric), rollout, rows, batch, sampled)
        paid = {name: _pays(function, rows, texts) for name, texts in _trial_texts(rows).items()}
    return replace(measured(policy, batch, rows, prompts, group_size, paid), prompted=prompted, revised=revised)


def check_samples(config: Config) -> None:
    if config.method.reads != "prompts":
        raise UserError(f"--probe: `method: {config.method.name}` samples nothing: give a recipe that does")


def reward_of(config: Config, rows: Sequence[Row], notice: Callable[[str], None]) -> RewardFunction:
    """The recipe's reward."""
    return build_reward(
        config.reward,
        load_checker(checker_name(config), optional=config.answers_are_optional),
        device=config.model.device,
        notice=notice,
        weights=partial(newest_weights, key="reward.file"),
        rows=rows,
    )


def _with_rubric(
    config: Config,
    prompts: Prompts,
    rollout: OnPolicy,
    rows: Sequence[Row],
    bare: Batch,
    sampled: Callable[[Rollout, Sequence[Row]], Batch],
) -> tuple[Sampled | None, Sampled | None]:
    """Of GRAPE: fresh answers under the rubric's `generate` prompts, if it has any, and revisions of the wrong ones."""
    if not isinstance(config.method, GrapeConfig):
        return None, None

    memory, fresh, prompted = Memory(), bare, None
    grape = partial(
        GrapeRollout, rollout, memory=memory, generation_prompt=prompts.generation, revision_prompt=prompts.revision
    )
    if prompts.has_generation_prompt():
        fresh = sampled(grape(mix=Mix(fresh=1.0)), rows)
        prompted = _earned(fresh)
    wrong = [i for i, verdict in enumerate(fresh.signals.correct or ()) if verdict is False]
    if wrong and config.method.mix.revised:
        memory.remember(fresh.rows(wrong), feedback_of)
    prepared = (lambda row: row) if rollout.environments is None else rollout.environments.prepared
    revisable = [row for row in rows if memory.of(prepared(row))]
    if not revisable:
        return prompted, None
    batch = sampled(grape(mix=Mix(fresh=0.0, revised=1.0)), revisable)
    revised = [i for i, origin in enumerate(batch.samples.extras["origin"]) if origin == "revised"]  # those that fit
    return prompted, _earned(batch.rows(revised)) if revised else None


def spread_rows(rows: Sequence[Row], count: int) -> list[Row]:
    return [rows[number * len(rows) // count] for number in range(count)]


def _earned(batch: Batch) -> Sampled:
    correct = batch.signals.correct or ()
    return Sampled(
        hits=sum(verdict is True for verdict in correct),
        checked=sum(verdict is not None for verdict in correct),
        reward=float(batch.signals.rewards_B.cpu().double().nanmean()),
    )


def _missed(batch: Batch) -> float:
    correct = batch.signals.correct or (None,) * len(batch)
    pairs = zip(batch.signals.rewards_B.tolist(), correct, strict=True)
    return _mean([reward for reward, verdict in pairs if verdict is False and reward == reward])


def measured(
    policy: Policy, batch: Batch, rows: Sequence[Row], prompts: int, group_size: int, paid: dict[str, float]
) -> Probe:
    rewards_B, group_B = batch.signals.rewards_B.cpu().double(), batch.samples.group_B.cpu()
    rewards_PG = rewards_B.view(-1, group_size)
    known_P = [row[~row.isnan()] for row in rewards_PG]
    spreads = [float(row.std(correction=0)) for row in known_P if len(row) > 1]
    correct, earned = list(batch.signals.correct or ()), _earned(batch)
    by_prompt = [correct[at : at + group_size] for at in range(0, len(correct), group_size)]
    texts = [completion_text(text) for text in batch.samples.extras.get(SEEN, batch.samples.completions)]
    cut = batch.samples.truncated_B.tolist()
    of_cut = [text for text, is_cut in zip(texts, cut, strict=True) if is_cut]
    sources = [_input(row) for row in rows]
    answers = [completion_text(row["answer"]) for row in rows if row.get("answer") is not None]
    echoes = [share_in(text, sources[at // group_size]) >= ECHO for at, text in enumerate(texts)]
    own = [
        share_in(completion_text(row["answer"]), source) >= ECHO
        for row, source in zip(rows, sources, strict=True)
        if row.get("answer") is not None
    ]
    lengths = sorted(answer_lengths(policy.tokenizer, answers))
    return Probe(
        prompts=prompts,
        groups=len(rows),
        group_size=group_size,
        hits=earned.hits,
        checked=earned.checked,
        reward=earned.reward,
        missed=_missed(batch),
        hits_by_prompt=tuple(sum(map(bool, group)) for group in by_prompt if None not in group),
        spread=_mean(spreads),
        flat=float(share_without_variance(rewards_B, group_B)),
        cut=_mean(cut),
        lines=_mean([_goes_on(text) for text in of_cut]),
        echoed=_mean(echoes),
        answers_echo=_mean(own),
        answer_tokens=lengths[math.ceil(0.95 * len(lengths)) - 1] if lengths else 0,
        answer_words=int(median(len(answer.split()) for answer in answers)) if answers else 0,
        multiline=any("\n" in answer.strip() for answer in answers),
        pays_empty=paid["empty"],
        pays_echo=paid["echo"],
        pays_answer=paid["answer"],
    )


def _goes_on(text: str) -> bool:
    """Whether the first line has text and another follows. One that begins with a newline would be ended empty."""
    first, _, later = text.partition("\n")
    return bool(first.strip() and later.strip())


def _trial_texts(rows: Sequence[Row]) -> dict[str, list[str | None]]:
    answers = [None if row.get("answer") is None else completion_text(row["answer"]) for row in rows]
    return {"empty": [""] * len(rows), "echo": [_input(row) for row in rows], "answer": answers}


def _pays(function: RewardFunction, rows: Sequence[Row], texts: Sequence[str | None]) -> float:
    """The mean reward of the texts in place of completions; NaN if it is not known, as of a function that reads
    tokens."""
    given = [(row, text) for row, text in zip(rows, texts, strict=True) if text is not None]
    if not given:
        return math.nan
    if isinstance(function, CombinedReward):
        function.load({})  # as before the first hit
    arguments: dict[str, Any] = {
        **{name: [row.get(name) for row, _ in given] for row, _ in given for name in row if name != "prompt"},
        "prompts": [row["prompt"] for row, _ in given],
        "completions": [
            text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}] for row, text in given
        ],
        "log_extra": ignore,
        "log_metric": ignore,
    }
    try:
        result = named_errors("reward", lambda: started(function(**arguments)))
        values = checked_rewards("reward", result.result() if isinstance(result, Future) else result, len(given))
    except RewardFailed:
        return math.nan
    return _mean([value for value in values if value is not None])


def _input(row: Row) -> str:
    return prompt_text(row["prompt"]) if row.get("input") is None else str(row["input"])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
