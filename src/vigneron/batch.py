"""What one step works on: a small frozen dataclass, changed by `replace`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vigneron.core.masked import length_mask
from vigneron.distributed import ranks

Span = tuple[int, int]

# Fields that say how a batch is laid out: they have no value for each sample.
OF_THE_WHOLE = ("paired", "per_row", "shareable", "packing", "row_tokens")


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
    """What the reward logged."""
    figures: dict[str, float] = field(default_factory=dict)
    """What a slot of the method logged."""
    correct: tuple[bool | None, ...] | None = None
    """The checker's verdicts."""
    excluded_B: Bool[Tensor, " B"] | None = None
    """Samples that are not trained on though they have a reward."""
    shareable: bool = True
    """Whether the model keeps completions apart that stand behind one prompt."""
    paired: bool = False
    """Whether the samples that are trained on come in twos, the chosen text of a pair and the rejected one: no part of
    the batch tears them apart."""
    per_row: int = 1
    """How many completions of a prompt a training pass puts behind one copy of it."""
    packing: bool = False
    """Whether samples with different prompts may stand behind each other in one row of a training pass."""
    row_tokens: int = 0
    """How long a row may get by packing."""
    completion_ids: tuple[tuple[int, ...], ...] | None = None
    """The completions on the host, where they were kept: reading them off the device is a wait."""
    owners: tuple[int, ...] | None = None
    """The rank that passes each sample through models. None: this one passes all of them."""
    # Filled in by the loop's slots; None before.
    prompt_hidden_BH: Float[Tensor, "B H"] = None  # type: ignore[assignment]
    rewards_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    values_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    values_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    returns_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    advantages_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    reference_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    reference_hidden_BTH: Float[Tensor, "B T H"] = None  # type: ignore[assignment]
    previous_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    previous_hidden_BTH: Float[Tensor, "B T H"] = None  # type: ignore[assignment]
    drawn_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    """Log-probs under the text that a completion was really drawn from, where that may not be what it is trained under;
    NaN for one that was not drawn. `behaviour` is then NaN until the policy that sampled has been asked."""
    drawn_ids: tuple[tuple[int, ...], ...] | None = None
    """That text."""

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def completion_lists(self) -> Sequence[Sequence[int]]:
        """The completions' ids on the host, without padding."""
        if self.completion_ids is not None:
            return self.completion_ids
        widths = [spans[-1][1] - spans[0][0] for spans in self.spans]
        return [row[:width] for row, width in zip(self.completion_BT.tolist(), widths, strict=True)]

    @cached_property
    def lengths_B(self) -> Int[Tensor, " B"]:
        """Tokens from the first completion token to the last one."""
        ends = [spans[-1][1] - spans[0][0] for spans in self.spans]
        return to_device(ends, self.completion_BT.device)

    @cached_property
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

    @cached_property
    def trained_BT(self) -> Bool[Tensor, "B T"]:
        """1 on the tokens that are trained on: a sample excluded, or without a reward (NaN), has none."""
        trained_BT = self.mask_BT
        if self.rewards_B is not None:
            trained_BT = trained_BT & ~self.rewards_B.isnan()[:, None]
        if self.excluded_B is not None:
            trained_BT = trained_BT & ~self.excluded_B[:, None]
        return trained_BT

    @property
    def teaching_B(self) -> Float[Tensor, " B"]:
        """The rewards, NaN for samples that are not trained on."""
        return self.rewards_B if self.excluded_B is None else self.rewards_B.masked_fill(self.excluded_B, torch.nan)

    def rows(self, indices: Sequence[int]) -> "Batch":
        """The given samples, cut to the longest completion among them."""
        at = to_device(list(indices), self.completion_BT.device)
        width = max(self.spans[i][-1][1] - self.spans[i][0][0] for i in indices)

        def pick(name: str, value: Any) -> Any:
            if isinstance(value, Tensor):
                picked = value[at]
                return picked[:, :width] if "_BT" in name else picked
            if value is None or name in ("metrics", "figures", *OF_THE_WHOLE):
                return value
            if isinstance(value, dict):
                return {key: tuple(column[i] for i in indices) for key, column in value.items()}
            return tuple(value[i] for i in indices)

        return Batch(**{f.name: pick(f.name, getattr(self, f.name)) for f in fields(self)})


def to_device(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Whole numbers from the host, without waiting for what the device is doing."""
    tensor = torch.from_numpy(np.array(numbers, dtype=np.int64))  # faster than torch's own reading of lists
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def concatenated(parts: Sequence[Batch]) -> Batch:
    """Parts one after the other. Figures that each of them logged are averaged over samples."""
    if len(parts) == 1:
        return parts[0]
    width, total = max(part.completion_BT.shape[1] for part in parts), sum(len(part) for part in parts)

    def join(name: str, values: list[Any]) -> Any:
        if name in ("metrics", "figures"):
            names = dict.fromkeys(key for value in values for key in value)
            return {key: _mean_of(name, key, parts) for key in names}
        if values[0] is None or name in OF_THE_WHOLE:
            return values[0]
        if isinstance(values[0], Tensor):
            return torch.cat([_widened(v, width) if "_BT" in name else v for v in values])
        if isinstance(values[0], dict):
            names = dict.fromkeys(key for value in values for key in value)
            return {
                key: tuple(x for v, part in zip(values, parts, strict=True) for x in v.get(key, (None,) * len(part)))
                for key in names
            }
        return tuple(x for value in values for x in value)

    whole = Batch(**{f.name: join(f.name, [getattr(part, f.name) for part in parts]) for f in fields(Batch)})
    assert len(whole) == total
    return whole


def _mean_of(field_name: str, figure: str, parts: Sequence[Batch]) -> float:
    logged = [(len(part), getattr(part, field_name)) for part in parts]
    seen = [(count, figures[figure]) for count, figures in logged if figure in figures]
    return sum(count * value for count, value in seen) / sum(count for count, _ in seen)


def _widened(values_BT: Tensor, width: int) -> Tensor:
    blank_BT = values_BT.new_zeros(len(values_BT), width, *values_BT.shape[2:])
    blank_BT[:, : values_BT.shape[1]] = values_BT
    return blank_BT


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


def bundles(batch: Batch) -> list[list[int]]:
    """Samples that share a row: at most `per_row`, with the same prompt."""
    return [run[at : at + batch.per_row] for run in _of_one_prompt(batch) for at in range(0, len(run), batch.per_row)]


def packed_rows(batch: Batch) -> list[list[list[int]]]:
    """The bundles of each row: one, or with `packing` as many as `row_tokens` has room for.

    The longest first, each into the first row that has room. A part that takes whole rows falls into the same again.
    """
    found = bundles(batch)
    if not batch.packing:
        return [[bundle] for bundle in found]
    widths = [_bundle_width(batch, bundle) for bundle in found]
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(found)), key=lambda number: (-widths[number], number)):
        row = next((r for r, left in enumerate(room) if left >= widths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(batch.row_tokens)
        rows[row].append(number)
        room[row] -= widths[number]
    return [[found[number] for number in row] for row in rows]


def _of_one_prompt(batch: Batch) -> list[list[int]]:
    """The samples of each prompt, wherever they stand: a part of the batch then falls into the same rows again. Pairs
    share rows with nobody else."""
    if batch.paired:
        return [[i, i + 1] for i in range(0, len(batch), 2)]
    found: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(batch.prompt_ids):
        found.setdefault(prompt, []).append(i)
    return list(found.values())


def parts_of(batch: Batch, budget: int) -> list[Batch]:
    """Parts of at most `budget` tokens, padding counted; completions of a prompt stay together where it pays, the two
    texts of a pair always."""
    batch = replace(batch, per_row=completions_per_row(batch, budget))
    if batch.packing:  # rows as long as the longest sample: what was padding beside it is filled
        longest = max(_bundle_width(batch, bundle) for bundle in bundles(batch))
        batch = replace(batch, row_tokens=min(longest, budget))
    rows = _pairs(batch) if batch.paired else packed_rows(batch)
    widths = [_width(batch, row) for row in rows]
    # In their old order, so that the part falls into the same rows again.
    return [
        batch.rows(sorted(i for row in part for bundle in rows[row] for i in bundle))
        for part in length_buckets(widths, budget)
    ]


def _pairs(batch: Batch) -> list[list[list[int]]]:
    """The bundles of each pair: one, or two."""
    return [[pair] if batch.per_row > 1 else [[i] for i in pair] for pair in _of_one_prompt(batch)]


def _width(batch: Batch, together: Sequence[Sequence[int]]) -> int:
    """Of bundles one behind the other in a packed row, or in rows of their own that are padded alike."""
    widths = [_bundle_width(batch, bundle) for bundle in together]
    return sum(widths) if batch.packing else len(widths) * max(widths)


def completions_per_row(batch: Batch, budget: int) -> int:
    """Of 1, 2, 4 … completions behind one copy of a prompt, the number that costs least and fits the budget.

    A row of width W costs W token passes, and W² pairs of attention: some 3,000 pairs cost as much as a token in the
    small models this is for, a third of that with a mask, which the fast kernels cannot take.
    """
    if not batch.shareable:
        return 1
    runs = _of_one_prompt(batch)
    most = max((len(run) for run in runs), default=1)
    choices = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]

    def cost(per_row: int) -> float:
        rows = [run[at : at + per_row] for run in runs for at in range(0, len(run), per_row)]
        widths = [_bundle_width(batch, row) for row in rows]
        if per_row > 1 and max(widths) > budget:
            return math.inf
        return sum(width * (1 + width / (3072 if per_row == 1 else 1024)) for width in widths)

    return min(choices, key=cost)


def _bundle_width(batch: Batch, bundle: Sequence[int]) -> int:
    return len(batch.prompt_ids[bundle[0]]) + sum(batch.spans[i][-1][1] - batch.spans[i][0][0] for i in bundle)


def shared_out(batch: Batch) -> Batch:
    """Give every sample to a rank, so that all have about as many tokens to pass. Nobody shares where there is one."""
    return batch if ranks.world_size() == 1 else replace(batch, owners=dealt(batch, ranks.world_size()))


def dealt(batch: Batch, hands: int) -> tuple[int, ...]:
    """The largest first, each to who has least. The samples of a prompt stay together where there are prompts enough;
    the two texts of a pair always do."""
    units = _of_one_prompt(batch)
    if len(units) < 2 * hands and not batch.paired:
        units = [[i] for i in range(len(batch))]
    widths = [_bundle_width(batch, unit) for unit in units]
    held, owners = [0] * hands, [0] * len(batch)
    for number in sorted(range(len(units)), key=lambda number: (-widths[number], number)):
        hand = held.index(min(held))
        held[hand] += widths[number]
        for i in units[number]:
            owners[i] = hand
    return tuple(owners)


def passes(batch: Batch, budget: int) -> list[Batch]:
    """The parts of at most `budget` tokens that this rank passes through models.

    Every rank makes the same number of passes, which sharded weights need: one that has none left repeats a sample of
    which nothing counts.
    """
    if batch.owners is None:
        return parts_of(batch, budget)
    mine = [i for i, owner in enumerate(batch.owners) if owner == ranks.rank()]
    parts = parts_of(batch.rows(mine), budget) if mine else []
    most = int(ranks.all_reduce_max(len(parts)))
    if len(parts) == most:
        return parts
    some = batch.rows([0, 1] if batch.paired else [0])
    idle = replace(some, owners=(-1,) * len(some), excluded_B=torch.ones_like(some.truncated_B))
    return [*parts, *[idle] * (most - len(parts))]


def map_parts(batch: Batch, budget: int, function: Callable[[Batch], dict[str, Tensor]]) -> dict[str, Any]:
    """Tensors that `function` computes for parts of at most `budget` tokens, put together for the whole batch.

    Hidden states (`_BTH`) are large, and stay with the rank that will use them.
    """
    whole: dict[str, Tensor] = {}
    numbered = replace(batch, sample_B=torch.arange(len(batch), device=batch.completion_BT.device))
    for part in passes(numbered, budget):
        rows = part.sample_B if part.owners is None or part.owners[0] >= 0 else part.sample_B[:0]
        for name, values in function(replace(part, sample_B=batch.sample_B[part.sample_B])).items():
            by_token = "_BT" in name
            if name not in whole:
                inner = (batch.completion_BT.shape[1], *values.shape[2:]) if by_token else values.shape[1:]
                whole[name] = values.new_zeros(len(batch), *inner)
            if by_token:
                whole[name][rows, : values.shape[1]] = values[: len(rows)]
            else:
                whole[name][rows] = values[: len(rows)]
    if batch.owners is not None:
        for name in sorted(whole):
            if not name.endswith("_BTH"):
                ranks.all_reduce_sum(whole[name])
    return whole
