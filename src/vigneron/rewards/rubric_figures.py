"""The scores of a category as tensors, and the figures that are logged of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nan

from vigneron.rewards.rubric import Rewarded, explained_shares, rewarded
from vigneron.rubric.model import AnyItem
from vigneron.rubric.verdict import Verdict

ByItem = dict[str, Verdict]


@dataclass(frozen=True)
class Scored:
    """The samples of one category: which they are, and what each item gave them."""

    category: str
    items: Sequence[AnyItem]
    samples: list[int]
    verdicts: list[ByItem]


def put_together(scored: Scored, groups: Sequence[int], *, normalise: bool, weigh: bool) -> Rewarded:
    def table(value_of: Callable[[Verdict], float]) -> torch.Tensor:
        rows = [[nan if v.score is None else value_of(v) for v in by_item.values()] for by_item in scored.verdicts]
        return torch.tensor(rows, dtype=torch.float64)

    return rewarded(
        table(lambda verdict: float(verdict.score or 0.0)),
        table(lambda verdict: verdict.confidence if weigh else 1.0),
        torch.tensor([item.weight for item in scored.items], dtype=torch.float64),
        torch.tensor([groups[i] for i in scored.samples]),
        normalise=normalise,
    )


def score_figure(sums: Sequence[float]) -> dict[str, float]:
    """The mean weighted sum of scores, whatever the confidences: one measure over time, and between runs."""
    present = [value for value in sums if value == value]
    return {"score": sum(present) / len(present)} if present else {}


def spent_figures(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Tokens of a judge that says how many it took."""
    verdicts = [verdict for entry in said for verdict in entry["items"].values()]
    spent = {f"judge/{key}": sum(verdict.get(key, 0) for verdict in verdicts) for key in ("tokens_in", "tokens_out")}
    return spent if any(spent.values()) else {}


def item_figures(scored: Scored, found: Rewarded, groups: Sequence[int]) -> dict[str, float]:
    """Of each item: its mean, spread and confidence, its failures, and its share of what the advantages are made of."""
    shares_J = explained_shares(found.contributions_BJ, torch.tensor(groups)).tolist()
    figures: dict[str, float] = {}
    for j, item in enumerate(scored.items):
        scores = torch.tensor([v[item.name].score for v in scored.verdicts if v[item.name].score is not None])
        name = f"{scored.category}/{item.name}"
        figures[f"{name}/failed"] = len(scored.verdicts) - len(scores)
        if len(scores):
            figures[f"{name}/score"] = float(scores.mean())
            figures[f"{name}/spread"] = float(scores.std(correction=0))
            figures[f"{name}/confidence"] = float(found.confidence_J[j])
        if shares_J[j] == shares_J[j]:
            figures[f"{name}/share"] = shares_J[j]
    present_B = found.rewards_B[~found.rewards_B.isnan()]
    return {**figures, **({f"{scored.category}/reward": float(present_B.mean())} if len(present_B) else {})}
