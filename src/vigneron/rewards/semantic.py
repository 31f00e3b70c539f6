"""PGSRM's reward (pgsrm §3.2): the similarity of two embeddings, of the answer of the child (the model that is trained)
and of the answer of the parent (a stronger model)."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vigneron.config.rewards import Clean
from vigneron.data.prompts import Row, completion_text, prompt_text
from vigneron.sources.embedders import Embedder
from vigneron.text import CLEANERS, length_ratio, repetition


@dataclass(frozen=True)
class Guards:
    """Corrections against reward hacking, for the non-negative forms."""

    input_weight: float = 0.0
    max_length_ratio: float | None = None
    max_repetition: float | None = None
    second: Embedder | None = None
    max_cut_ratio: float | None = None

    def without_echo(self, scores_B: Float[Tensor, " B"], echo_B: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """max(0, R − w · R(input)), both with the same embedder."""
        return (scores_B - self.input_weight * echo_B).clamp(min=0.0) if self.input_weight else scores_B

    def gated(
        self, scores_B: Float[Tensor, " B"], children: Sequence[str], parents: Sequence[str]
    ) -> Float[Tensor, " B"]:
        """0 for a text that is too long or too repetitive; a missing reward stays missing."""
        passed = [self._passes(child, parent) for child, parent in zip(children, parents, strict=True)]
        return torch.where(torch.tensor(passed) | scores_B.isnan(), scores_B, 0.0)

    def shortened(
        self,
        scores_B: Float[Tensor, " B"],
        children: Sequence[str],
        parents: Sequence[str],
        truncated: Sequence[bool] | None,
    ) -> Float[Tensor, " B"]:
        """R · min(1, c / ratio) of completions that `max_new_tokens` cut, where ratio is their number of words over the
        answer's and c `max_cut_ratio`."""
        if self.max_cut_ratio is None or truncated is None or not any(truncated):
            return scores_B
        limit = self.max_cut_ratio
        factors = [
            min(1.0, limit / max(length_ratio(child, parent), 1e-9)) if is_cut else 1.0
            for child, parent, is_cut in zip(children, parents, truncated, strict=True)
        ]
        return scores_B * torch.tensor(factors, dtype=scores_B.dtype)

    def _passes(self, child: str, parent: str) -> bool:
        return (self.max_length_ratio is None or length_ratio(child, parent) <= self.max_length_ratio) and (
            self.max_repetition is None or repetition(child) <= self.max_repetition
        )


Form = Literal["clip", "shift", "euclidean"]


@dataclass(frozen=True)
class Contrast:
    """What `form: contrastive` compares with, beside the own input: answers of other rows."""

    rows: Sequence[Row]
    """The training rows, also for held-out completions."""
    negatives: int = 8
    temperature: float = 0.1

    def answers(self, prompt: str, answer: str, clean: Callable[[str], str]) -> list[str]:
        """Up to `negatives` distinct cleaned answers of other rows, none equal to the own one.

        Draw k is the row of number SHA-256(prompt, answer, k) modulo the number of rows: it depends on the row and on
        the training data alone, not on the step, its order, the rank or a resume.
        """
        own, found = clean(answer), list[str]()
        key = hashlib.sha256(json.dumps([prompt, answer]).encode())
        for k in range(TRIES * self.negatives if self.rows else 0):
            if len(found) == self.negatives:
                break
            drawn = key.copy()
            drawn.update(k.to_bytes(8, "big"))
            other = self.rows[int.from_bytes(drawn.digest()[:8], "big") % len(self.rows)].get("answer")
            text = None if other is None else clean(completion_text(other))
            if text and text != own and text not in found:
                found.append(text)
        return found


# Draws for each negative: where few answers are distinct, a row has fewer negatives.
TRIES = 8


def similarity_reward(
    parent_BD: Float[Tensor, "B D"],
    child_BD: Float[Tensor, "B D"],
    *,
    alpha: float = 4.0,
    form: Form = "clip",
) -> Float[Tensor, " B"]:
    """R = max(0, cos(e_p, e_c))^α   (pgsrm §3.2), of ℓ₂-normalised embeddings e_p (parent) and e_c (child).

    clip: the paper. shift: ((cos + 1) / 2)^α, the released code; an unrelated pair earns 0.06 at α = 4.
    euclidean: 1 − ‖p̂ − ĉ‖, within [−1, 1], without α. A zero row (no known word) has cosine 0 and distance √2;
    a NaN row is missing and gives NaN.
    """
    if not alpha >= 1:
        raise ValueError(f"alpha must be at least 1, not {alpha}")
    parent_BD, child_BD = normalize(parent_BD, dim=1), normalize(child_BD, dim=1)
    if form == "euclidean":
        unknown_B = (parent_BD == 0).all(1) | (child_BD == 0).all(1)
        distance_B = torch.where(unknown_B, 2.0**0.5, (parent_BD - child_BD).norm(dim=1))
        missing_B = parent_BD.isnan().any(1) | child_BD.isnan().any(1)
        return torch.where(missing_B, torch.nan, 1.0 - distance_B).clamp(-1.0, 1.0)
    cosine_B = (parent_BD * child_BD).sum(1).clamp(-1.0, 1.0)
    if form == "shift":
        return ((cosine_B + 1.0) / 2.0) ** alpha
    if form == "clip":
        return cosine_B.clamp(min=0.0) ** alpha
    raise ValueError(f"form must be clip, shift or euclidean, not {form!r}")


def contrastive_reward(
    parent_BD: Float[Tensor, "B D"],
    child_BD: Float[Tensor, "B D"],
    negatives_BND: Float[Tensor, "B N D"],
    *,
    temperature: float = 0.1,
) -> Float[Tensor, " B"]:
    """The probability of the parent's answer among itself and N negatives: softmax over cosines / temperature.

    A NaN negative is left out; with none left the reward is missing (NaN), as with a NaN child or parent. A zero row
    has cosine 0.
    """
    child_BD = normalize(child_BD, dim=1)
    positive_B1 = (normalize(parent_BD, dim=1) * child_BD).sum(1, keepdim=True)
    negative_BN = (normalize(negatives_BND, dim=2) * child_BD[:, None]).sum(2)
    given_BN = ~negatives_BND.isnan().any(2)
    negative_BN = torch.where(given_BN, negative_BN, -torch.inf)
    missing_B = ~given_BN.any(1) | parent_BD.isnan().any(1) | child_BD.isnan().any(1)
    probability_B = (torch.cat([positive_B1, negative_BN], 1) / temperature).softmax(1)[:, 0]
    return torch.where(missing_B, torch.nan, probability_B)


class SemanticReward:
    """`similarity_reward` of texts, or `contrastive_reward`, with TRL's signature. The parent's answers are in the
    column `answer`.

    If rows have an `input`, the completion's similarity to it is logged, which shows echoing; without an `input`,
    guards and the contrast compare with the prompt. `Guards()` are off.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        alpha: float = 4.0,
        form: Form = "clip",
        clean: Clean = "words",
        guards: Guards | None = None,
        contrast: Contrast | None = None,
    ) -> None:
        """`contrast`: the form is `contrastive`, and `alpha` and `form` are those of the logged similarity alone."""
        self.__name__ = "semantic"
        self._embedder = embedder
        self._alpha: float = alpha
        self._form: Form = form
        self._clean = CLEANERS[clean]
        self._guards = guards or Guards()
        self._contrast = contrast
        self._others = lru_cache(4096)(self._draw_others)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        answer: Sequence[str | None],
        input: Sequence[Any] | None = None,
        completion_truncated: Sequence[bool] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        have = [i for i, text in enumerate(answer) if text is not None]
        rewards: list[float | None] = [None] * len(completions)
        if not have:
            return rewards
        parents = [completion_text(answer[i]) for i in have]
        children = [completion_text(completions[i]) for i in have]
        inputs = None
        if input is not None or self._guards.input_weight or self._contrast is not None:
            inputs = [prompt_text(prompts[i]) if input is None or input[i] is None else str(input[i]) for i in have]
        negatives = self._negatives([prompts[i] for i in have], parents, inputs or [])
        scores_B, echo_B = self._scores(parents, children, inputs, negatives)
        if log_metric is not None and echo_B is not None and not echo_B.isnan().all():
            log_metric("input_similarity", float(echo_B.nanmean()))
        cut = None if completion_truncated is None else [completion_truncated[i] for i in have]
        scores_B = self._guards.shortened(scores_B, children, parents, cut)
        for i, score in zip(have, self._guards.gated(scores_B, children, parents).tolist(), strict=True):
            rewards[i] = None if score != score else score
        return rewards

    def _negatives(
        self, prompts: Sequence[Any], parents: Sequence[str], inputs: Sequence[str]
    ) -> list[list[str]] | None:
        """For each child the cleaned texts of the contrast: the own input and others' answers, without the own one."""
        if self._contrast is None:
            return None
        found = []
        for prompt, parent, source in zip(prompts, parents, inputs, strict=True):
            texts = (self._clean(source), *self._others(json.dumps(prompt, sort_keys=True), parent))
            found.append([text for text in dict.fromkeys(texts) if text and text != self._clean(parent)])
        return found

    def _draw_others(self, prompt: str, parent: str) -> list[str]:
        assert self._contrast is not None
        return self._contrast.answers(prompt, parent, self._clean)

    def _scores(
        self,
        parents: Sequence[str],
        children: Sequence[str],
        inputs: Sequence[str] | None,
        negatives: Sequence[Sequence[str]] | None,
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"] | None]:
        """Each child's reward, the lowest over the embedders, and its similarity to the input by the first embedder."""
        # One call, so that a repeated text is embedded once.
        texts = [self._clean(text) for text in (*parents, *children, *(inputs or ()))]
        others = list(dict.fromkeys(text for row in negatives or () for text in row))
        place = {text: number for number, text in enumerate(others)}
        scores: list[Tensor] = []
        echoes: list[Tensor] = []
        for embedder in (self._embedder, self._guards.second):
            if embedder is None:
                continue
            vectors = embedder.embed([*texts, *others])
            parent_BD, child_BD, *input_BD = vectors[: len(texts)].split(len(children))
            if negatives is None or self._contrast is None:
                score_B = self._similarity(parent_BD, child_BD)
            else:
                width = max(1, *(len(row) for row in negatives))
                negative_BND = vectors.new_full((len(children), width, vectors.shape[1]), torch.nan)
                for at, row in enumerate(negatives):
                    if row:
                        negative_BND[at, : len(row)] = vectors[[len(texts) + place[text] for text in row]]
                score_B = contrastive_reward(parent_BD, child_BD, negative_BND, temperature=self._contrast.temperature)
            for of_input_BD in input_BD:
                echoes.append(self._similarity(of_input_BD, child_BD))
                score_B = self._guards.without_echo(score_B, echoes[-1])
            scores.append(score_B)
        return torch.stack(scores).amin(0), echoes[0] if echoes else None

    def _similarity(self, one_BD: Float[Tensor, "B D"], other_BD: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        return similarity_reward(one_BD, other_BD, alpha=self._alpha, form=self._form)
