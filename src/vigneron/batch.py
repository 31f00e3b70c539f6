"""What one step works on: a small frozen dataclass, changed by `replace`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vigneron.core.masked import length_mask

Span = tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """B samples: token ids as they were sampled, and what each slot of the loop has added.

    The `_BT` tensors begin at each row's first completion token. `spans[i]` are the stretches of row i that the
    policy wrote, as (start, stop) in the whole sequence: masks come from them, never from `ids != pad`.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    completion_BT: Int[Tensor, "B T"]
    spans: tuple[tuple[Span, ...], ...]
    behaviour_BT: Float[Tensor, "B T"]
    truncated_B: Bool[Tensor, " B"]
    group_B: Int[Tensor, " B"]
    sample_B: Int[Tensor, " B"]
    prompts: tuple[Any, ...]
    completions: tuple[Any, ...]
    columns: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    extras: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    excluded_B: Bool[Tensor, " B"] | None = None
    """Samples that are not trained on though they have a reward."""
    # Filled in by the loop's slots; None before.
    prompt_hidden_BH: Float[Tensor, "B H"] = None  # type: ignore[assignment]
    rewards_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    values_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    advantages_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    reference_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    reference_hidden_BTH: Float[Tensor, "B T H"] = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @property
    def lengths_B(self) -> Int[Tensor, " B"]:
        """Tokens from the first completion token to the last one."""
        ends = [spans[-1][1] - spans[0][0] for spans in self.spans]
        return torch.tensor(ends, device=self.completion_BT.device)

    @property
    def mask_BT(self) -> Bool[Tensor, "B T"]:
        """1 on the tokens the policy wrote."""
        width = self.completion_BT.shape[1]
        if all(len(spans) == 1 for spans in self.spans):
            return length_mask(self.lengths_B, width)
        mask = torch.zeros(len(self), width, dtype=torch.bool)
        for row, spans in enumerate(self.spans):
            for start, stop in spans:
                mask[row, start - spans[0][0] : stop - spans[0][0]] = True
        return mask.to(self.completion_BT.device)

    @property
    def trained_BT(self) -> Bool[Tensor, "B T"]:
        """1 on the tokens that are trained on: a sample excluded, or without a reward (NaN), has none."""
        trained_BT = self.mask_BT
        if self.rewards_B is not None:
            trained_BT = trained_BT & ~self.rewards_B.isnan()[:, None]
        if self.excluded_B is not None:
            trained_BT = trained_BT & ~self.excluded_B[:, None]
        return trained_BT

    def rows(self, indices: Sequence[int]) -> "Batch":
        """The given samples, cut to the longest completion among them."""
        at = torch.tensor(list(indices), device=self.completion_BT.device)
        width = int(self.lengths_B[at].max())

        def pick(name: str, value: Any) -> Any:
            if isinstance(value, Tensor):
                picked = value[at]
                return picked[:, :width] if "_BT" in name else picked
            if value is None or name == "metrics":
                return value
            if isinstance(value, dict):
                return {key: tuple(column[i] for i in indices) for key, column in value.items()}
            return tuple(value[i] for i in indices)

        return Batch(**{f.name: pick(f.name, getattr(self, f.name)) for f in fields(self)})


def length_buckets(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split rows into parts of at most `budget` tokens each, padding counted; like lengths stand together.

    A row longer than the budget is a part of its own. The longest come first: a size that does not fit in
    memory fails at once.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    parts: list[list[int]] = []
    for row in order:
        if parts and lengths[parts[-1][0]] * (len(parts[-1]) + 1) <= budget:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def map_parts(batch: Batch, budget: int, function: Callable[[Batch], dict[str, Tensor]]) -> dict[str, Any]:
    """Tensors that `function` computes for parts of at most `budget` tokens, put together for the whole batch."""
    whole: dict[str, Tensor] = {}
    for rows in length_buckets([spans[-1][1] for spans in batch.spans], budget):
        for name, values in function(batch.rows(rows)).items():
            by_token = "_BT" in name
            if name not in whole:
                inner = (batch.completion_BT.shape[1], *values.shape[2:]) if by_token else values.shape[1:]
                whole[name] = values.new_zeros(len(batch), *inner)
            if by_token:
                whole[name][rows, : values.shape[1]] = values
            else:
                whole[name][rows] = values
    return whole
