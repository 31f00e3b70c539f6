"""Rewards from a trained model: a reward model's score (`rlmt-grape` §4.4) or a preference model's ranking (§3)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch

from vigneron.data.formats import answered
from vigneron.data.prompts import Row, conversation_text
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import RewardModelKind, load_reward_model, reward_model_kind, scores_in_parts
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.pairs import two_texts

# Tokens in one forward pass, without gradients.
MICROBATCH_TOKENS = 16384


@dataclass(frozen=True)
class ModelReward:
    """R(x, y), the reward model's score, with its own tokenizer and chat template."""

    scorer: Policy
    __name__ = "model"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        tools: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        rows = conversations(prompts, tools)
        return list(_scores(self.scorer, [answered(*each) for each in zip(rows, completions, strict=True)]))


@dataclass(frozen=True)
class PreferenceReward:
    """A completion's rank within its group, by a preference model that compares each pair in both orders. A
    `StepReward`, which is told the groups: two of them may have the same prompt.

    win_rate: the mean probability of being better than each of the others. tournament: the share of the rounds won in a
    knock-out over the samples in order. Equal texts tie; a group of one gets 0.5.
    """

    scorer: Policy
    ranking: Literal["win_rate", "tournament"] = "win_rate"
    overlaps = False
    __name__ = "preference"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        tools: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """With TRL's signature: completions of the same prompt with the same tools are a group."""
        numbers: dict[str, int] = {}
        keys = [json.dumps(row, sort_keys=True) for row in conversations(prompts, tools)]
        groups = [numbers.setdefault(key, len(numbers)) for key in keys]
        return self.finish([], groups, prompts, completions, tools)

    def begin(self, completions: Sequence[Any], **columns: Any) -> Callable[[], list[None]]:
        return lambda: [None] * len(completions)

    def finish(
        self,
        begun: Sequence[None],
        groups: Sequence[int],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        tools: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        members: dict[int, list[int]] = {}
        for sample, group in enumerate(groups):
            members.setdefault(group, []).append(sample)
        texts = [conversation_text(text).strip() for text in completions]
        rank = self._win_rates if self.ranking == "win_rate" else self._rounds_won
        by_sample = rank(list(members.values()), conversations(prompts, tools), texts)
        return [by_sample[sample] for sample in range(len(prompts))]

    def scalars(self) -> dict[str, Any]:
        return {}

    def load(self, scalars: dict[str, Any]) -> None: ...

    def close(self) -> None: ...

    def _win_rates(
        self, groups: Sequence[Sequence[int]], rows: Sequence[Row], texts: Sequence[str]
    ) -> dict[int, float]:
        pairs = [(one, other) for group in groups for one in group for other in group if one < other]
        better = self._better(pairs, rows, texts)
        better |= {(other, one): 1 - probability for (one, other), probability in better.items()}
        better |= {(group[0], group[0]): 0.5 for group in groups if len(group) == 1}
        return {
            one: fmean(better[one, other] for other in group if other != one or len(group) == 1)
            for group in groups
            for one in group
        }

    def _rounds_won(
        self, groups: Sequence[Sequence[int]], rows: Sequence[Row], texts: Sequence[str]
    ) -> dict[int, float]:
        """Round by round, all groups together. A sample without an opponent advances; of a tie, the first one."""
        won = {sample: 0 for group in groups for sample in group}
        remaining = [list(group) for group in groups]
        while any(len(group) > 1 for group in remaining):
            pairs = [(group[at], group[at + 1]) for group in remaining for at in range(0, len(group) - 1, 2)]
            better = self._better(pairs, rows, texts)
            losers = {other if better[one, other] >= 0.5 else one for one, other in pairs}
            for group in remaining:
                plays = len(group) > 1
                group[:] = [sample for sample in group if sample not in losers]
                for sample in group if plays else ():
                    won[sample] += 1
        rounds = {group[0]: (len(group) - 1).bit_length() for group in groups}
        return {
            sample: won[sample] / rounds[group[0]] if rounds[group[0]] else 0.5 for group in groups for sample in group
        }

    def _better(
        self, pairs: Sequence[tuple[int, int]], rows: Sequence[Row], texts: Sequence[str]
    ) -> dict[tuple[int, int], float]:
        """The probability that the first of each pair is better, the mean of both orders."""
        differ = [(one, other) for one, other in pairs if texts[one] != texts[other]]
        ordered = [pair for one, other in differ for pair in ((one, other), (other, one))]
        joined = [two_texts(texts[one], texts[other]) for one, other in ordered]
        given = [{**rows[one], "answer": text} for (one, _), text in zip(ordered, joined, strict=True)]
        logits = _scores(self.scorer, given)
        better = dict.fromkeys(pairs, 0.5)
        for (one, other), as_first, as_second in zip(differ, logits[0::2], logits[1::2], strict=True):
            better[one, other] = (sigmoid(as_first) + sigmoid(-as_second)) / 2
        return better


def sigmoid(logit: float) -> float:
    return float(torch.sigmoid(torch.tensor(logit, dtype=torch.float64)))


def conversations(prompts: Sequence[Any], tools: Sequence[Any] | None) -> list[Row]:
    """Prompts with their tools, which a chat template writes before them."""
    given = [None] * len(prompts) if tools is None else tools
    return [{"prompt": prompt, "tools": each} for prompt, each in zip(prompts, given, strict=True)]


def _scores(scorer: Policy, rows: Sequence[Row]) -> list[float]:
    """Of prompts with their answers."""
    if not rows:
        return []
    batch = Demonstrations(scorer)(rows)
    if batch.samples.truncated_B.any():
        raise UserError(
            f"reward.model: a prompt with its completion exceeds the model's context of {scorer.context_length} "
            "tokens: lower max_new_tokens, or choose another model"
        )
    return scores_in_parts(scorer, batch, MICROBATCH_TOKENS).tolist()


WHAT_IT_DOES: dict[str, tuple[str, str]] = {
    "reward": ("scores one text", "model"),
    "first_is_better": ("compares two texts", "preference"),
    "process": ("scores the steps of a text", "process"),
}
"""For each kind of model, what it does and the `reward.kind` that uses it."""


def load_reward_scorer(
    name: str, kind: RewardModelKind, device: str, notice: Callable[[str], None] = lambda text: None
) -> Policy:
    """The model of `reward.model` in float32. One of another kind is refused."""
    scorer = load_reward_model(name, start=False, device=device, dtype="float32", key="reward.model", notice=notice)
    does = WHAT_IT_DOES.get(reward_model_kind(scorer), WHAT_IT_DOES["reward"])  # other trainers' have no kind
    if does != WHAT_IT_DOES[kind]:
        what, kind_needed = does
        raise UserError(f"reward.model: '{name}' {what}: set `reward.kind: {kind_needed}`")
    return scorer
