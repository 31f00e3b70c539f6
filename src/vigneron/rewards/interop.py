"""Vigneron's rewards in other trainers.

TRL's GRPOTrainer takes them unchanged, `GRPOTrainer(reward_funcs=[semantic_reward("lexical"), exact_reward], …)`, with
the reference answers in the dataset's column `answer`. verl scores one text at a time: `for_verl(reward)`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vigneron.config.rewards import Clean
from vigneron.rewards.semantic import Form, SemanticReward


def semantic_reward(
    embedder: str = "lexical",
    *,
    alpha: float = 4.0,
    form: Form = "clip",
    clean: Clean = "words",
) -> SemanticReward:
    """PGSRM's reward with the embedder of that name; embeddings are cached in memory."""
    from vigneron.sources.embedders import load_embedder
    from vigneron.sources.embedding_cache import CachedEmbedder

    return SemanticReward(CachedEmbedder(load_embedder(embedder)), alpha=alpha, form=form, clean=clean)


def for_verl(reward: Callable[..., Any]) -> Callable[..., float]:
    """A reward as verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`.

    `ground_truth` is passed as `answer`, `extra_info` as the other columns, and its `prompt`, if present, as the
    prompt. verl has no missing rewards: a missing one raises instead of counting as 0.
    """

    def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> float:
        columns = {name: [value] for name, value in (extra_info or {}).items() if name not in ("prompt", "answer")}
        prompts = [(extra_info or {}).get("prompt", "")]
        (score,) = reward(prompts=prompts, completions=[solution_str], answer=[ground_truth], **columns)
        if score is None:
            raise ValueError(f"the reward of {solution_str!r} is missing")
        return float(score)

    return compute_score
