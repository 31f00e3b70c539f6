"""Rewards by a trained scorer: a reward model's score (`rlmt-grape` §4.4), or a preference model's ranking (§3)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch

from vigneron.data.prompts import completion_text
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import RewardModelKind, load_reward_model, reward_model_kind, scores_in_parts
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.pairs import two_texts

# Tokens in a pass: without a gradient it takes little memory.
TOKENS_AT_ONCE = 16384


@dataclass(frozen=True)
class ModelReward:
    """R(x, y), the score of a completion behind its prompt, by the scorer's own tokenizer and chat template."""

    scorer: Policy
    __name__ = "model"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return list(_scored(self.scorer, prompts, [completion_text(text) for text in completions]))


@dataclass(frozen=True)
class PreferenceReward:
    """How a completion does against the others of its prompt, by a model that sees each two of them in both orders.

    win_rate: the mean probability of being better than each of the others. tournament: the share of a knock-out's
    rounds that it comes through, met in the order of the samples. Equal texts are as good as each other, and a
    completion that stands alone is as good as itself: 0.5.
    """

    scorer: Policy
    ranking: Literal["win_rate", "tournament"] = "win_rate"
    __name__ = "preference"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        groups: dict[str, list[int]] = {}
        for sample, prompt in enumerate(prompts):
            groups.setdefault(json.dumps(prompt, sort_keys=True), []).append(sample)
        texts = [completion_text(text).strip() for text in completions]
        rank = self._win_rates if self.ranking == "win_rate" else self._rounds_won
        found = rank(list(groups.values()), prompts, texts)
        return [found[sample] for sample in range(len(prompts))]

    def _win_rates(
        self, groups: Sequence[Sequence[int]], prompts: Sequence[Any], texts: Sequence[str]
    ) -> dict[int, float]:
        meetings = [(one, other) for group in groups for one in group for other in group if one < other]
        better = self._better(meetings, prompts, texts)
        better |= {(other, one): 1 - probability for (one, other), probability in better.items()}
        better |= {(group[0], group[0]): 0.5 for group in groups if len(group) == 1}
        return {
            one: fmean(better[one, other] for other in group if other != one or len(group) == 1)
            for group in groups
            for one in group
        }

    def _rounds_won(
        self, groups: Sequence[Sequence[int]], prompts: Sequence[Any], texts: Sequence[str]
    ) -> dict[int, float]:
        """All groups at once, round by round; who has nobody to meet goes on. Of equals the first does."""
        won = {sample: 0 for group in groups for sample in group}
        left = [list(group) for group in groups]
        while any(len(group) > 1 for group in left):
            meetings = [(group[at], group[at + 1]) for group in left for at in range(0, len(group) - 1, 2)]
            better = self._better(meetings, prompts, texts)
            losers = {other if better[one, other] >= 0.5 else one for one, other in meetings}
            for group in left:
                goes_on = len(group) > 1
                group[:] = [sample for sample in group if sample not in losers]
                for sample in group if goes_on else ():
                    won[sample] += 1
        rounds = {group[0]: (len(group) - 1).bit_length() for group in groups}
        return {
            sample: won[sample] / rounds[group[0]] if rounds[group[0]] else 0.5 for group in groups for sample in group
        }

    def _better(
        self, meetings: Sequence[tuple[int, int]], prompts: Sequence[Any], texts: Sequence[str]
    ) -> dict[tuple[int, int], float]:
        """The probability that the first of each two is the better one, the mean of both orders."""
        differ = [(one, other) for one, other in meetings if texts[one] != texts[other]]
        asked = [pair for one, other in differ for pair in ((one, other), (other, one))]
        joined = [two_texts(texts[one], texts[other]) for one, other in asked]
        odds = _scored(self.scorer, [prompts[one] for one, _ in asked], joined)
        found = dict.fromkeys(meetings, 0.5)
        for (one, other), as_first, as_second in zip(differ, odds[0::2], odds[1::2], strict=True):
            found[one, other] = (sigmoid(as_first) + sigmoid(-as_second)) / 2
        return found


def sigmoid(odds: float) -> float:
    return float(torch.sigmoid(torch.tensor(odds, dtype=torch.float64)))


def _scored(scorer: Policy, prompts: Sequence[Any], texts: Sequence[str]) -> list[float]:
    if not texts:
        return []
    rows = [{"prompt": prompt, "answer": text} for prompt, text in zip(prompts, texts, strict=True)]
    batch = Demonstrations(scorer)(rows)
    if batch.samples.truncated_B.any():
        raise UserError(
            f"reward.model: a prompt with what is to be scored is longer than the {scorer.context_length} tokens that "
            "the model reads: lower max_new_tokens, or choose another model"
        )
    return scores_in_parts(scorer, batch, TOKENS_AT_ONCE).tolist()


def load_reward_scorer(name: str, kind: RewardModelKind, device: str) -> Policy:
    """The scorer that `reward.model` names, in full precision; one of the other kind is refused."""
    scorer = load_reward_model(name, start=False, device=device, dtype="float32", key="reward.model")
    compares = reward_model_kind(scorer) == "first_is_better"
    if compares != (kind == "first_is_better"):
        what, mend = ("compares two texts", "preference") if compares else ("scores one text", "model")
        raise UserError(f"reward.model: '{name}' {what}: that is `reward.kind: {mend}`")
    return scorer
