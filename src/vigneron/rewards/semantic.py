"""PGSRM's reward (pgsrm §3.2): the similarity of two embeddings, of the answer of the child (the model that is trained)
and of the answer of the parent (a stronger model)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vigneron.data.prompts import completion_text, prompt_text
from vigneron.sources.embedders import Embedder
from vigneron.text import length_ratio, letters_only, repetition


@dataclass(frozen=True)
class Guards:
    """Corrections against reward hacking, for the non-negative forms `clip` and `shift`."""

    input_weight: float = 0.0
    max_length_ratio: float | None = None
    max_repetition: float | None = None
    second: Embedder | None = None

    def without_echo(self, scores_B: Float[Tensor, " B"], echo_B: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """max(0, R − w · R(input)), both with the same embedder."""
        return (scores_B - self.input_weight * echo_B).clamp(min=0.0) if self.input_weight else scores_B

    def gated(
        self, scores_B: Float[Tensor, " B"], children: Sequence[str], parents: Sequence[str]
    ) -> Float[Tensor, " B"]:
        """0 for a text that is too long or too repetitive; a missing reward stays missing."""
        passed = [self._passes(child, parent) for child, parent in zip(children, parents, strict=True)]
        return torch.where(torch.tensor(passed) | scores_B.isnan(), scores_B, 0.0)

    def _passes(self, child: str, parent: str) -> bool:
        return (self.max_length_ratio is None or length_ratio(child, parent) <= self.max_length_ratio) and (
            self.max_repetition is None or repetition(child) <= self.max_repetition
        )


Form = Literal["clip", "shift", "euclidean"]


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
    """`similarity_reward` of texts, with TRL's signature. The parent's answers are in the column `answer`.

    If rows have an `input`, the completion's similarity to it is logged, which shows echoing. Guards are off by
    default; without an `input` they compare with the prompt.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        alpha: float = 4.0,
        form: Form = "clip",
        clean: Literal["letters", "none"] = "letters",
        guards: Guards | None = None,
    ) -> None:
        self.__name__ = "semantic"
        self._embedder = embedder
        self._alpha: float = alpha
        self._form: Form = form
        self._clean = letters_only if clean == "letters" else str
        self._guards = guards or Guards()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        answer: Sequence[str | None],
        input: Sequence[Any] | None = None,
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
        if input is not None or self._guards.input_weight:
            inputs = [prompt_text(prompts[i]) if input is None or input[i] is None else str(input[i]) for i in have]
        scores_B, echo_B = self._scores(parents, children, inputs)
        if log_metric is not None and echo_B is not None and not echo_B.isnan().all():
            log_metric("input_similarity", float(echo_B.nanmean()))
        for i, score in zip(have, self._guards.gated(scores_B, children, parents).tolist(), strict=True):
            rewards[i] = None if score != score else score
        return rewards

    def _scores(
        self, parents: Sequence[str], children: Sequence[str], inputs: Sequence[str] | None
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"] | None]:
        """Each child's reward, the lowest over the embedders, and its similarity to the input by the first embedder."""
        # One call, so that a repeated text is embedded once.
        texts = [self._clean(text) for text in (*parents, *children, *(inputs or ()))]
        scores: list[Tensor] = []
        echoes: list[Tensor] = []
        for embedder in (self._embedder, self._guards.second):
            if embedder is None:
                continue
            parent_BD, child_BD, *input_BD = embedder.embed(texts).split(len(children))
            score_B = self._similarity(parent_BD, child_BD)
            for of_input_BD in input_BD:
                echoes.append(self._similarity(of_input_BD, child_BD))
                score_B = self._guards.without_echo(score_B, echoes[-1])
            scores.append(score_B)
        return torch.stack(scores).amin(0), echoes[0] if echoes else None

    def _similarity(self, one_BD: Float[Tensor, "B D"], other_BD: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        return similarity_reward(one_BD, other_BD, alpha=self._alpha, form=self._form)
