"""What one step works on: three small frozen records, changed by `replace`.

samples    what was sampled, or given: token ids, texts, log-probs recorded at sampling
signals    what the slots of the loop add: rewards, values, advantages, reference log-probs
packing    how the samples are put into rows for the model, and over ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vigneron.core.masked import length_mask
from vigneron.turn_sums import TurnSums, total

Span = tuple[int, int]
Record = TypeVar("Record", "Samples", "Signals", "Packing")


@dataclass(frozen=True)
class Samples:
    """B prompts, each with one completion.

    The `_BT` tensors begin at each row's first completion token. `spans[i]` are the parts of row i that the policy
    wrote, as (start, stop) in the whole sequence: masks come from them, never from `ids != pad`.
    """

    prompt_ids: tuple[tuple[int, ...], ...]
    completion_BT: Int[Tensor, "B T"]
    spans: tuple[tuple[Span, ...], ...]
    behaviour_BT: Float[Tensor, "B T"]
    """Log-probs of the policy that sampled, recorded at sampling. With importance weights, and where GRAPE trains a
    text behind another prompt: those of the policy at the start of the step."""
    truncated_B: Bool[Tensor, " B"]
    group_B: Int[Tensor, " B"]
    sample_B: Int[Tensor, " B"]
    """A sample's number in its step: it keys its random draws."""
    prompts: tuple[Any, ...]
    completions: tuple[Any, ...]
    columns: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The other columns of the dataset."""
    extras: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """What rollout and reward logged of each sample."""
    completion_ids: tuple[tuple[int, ...], ...] | None = None
    """The completions on the host, where they are known: reading them off the device is a wait."""
    prompt_hidden_BH: Float[Tensor, "B H"] = None  # type: ignore[assignment]
    """Hidden states after the prompts, where the engine kept them."""
    drawn_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    """Log-probs under the prompt that a completion was drawn from, where it is trained under another one; NaN for one
    that was not drawn. `behaviour_BT` is then NaN until the policy has scored it under the prompt of training."""
    drawn_ids: tuple[tuple[int, ...], ...] | None = None
    """The prompt that it was drawn from."""

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @cached_property
    def widths(self) -> list[int]:
        """Tokens from the first completion token to the last one, of each sample."""
        return [spans[-1][1] - spans[0][0] for spans in self.spans]

    def completion_lists(self) -> Sequence[Sequence[int]]:
        """The completions' ids on the host, without padding."""
        if self.completion_ids is not None:
            return self.completion_ids
        return [row[:width] for row, width in zip(self.completion_BT.tolist(), self.widths, strict=True)]

    @cached_property
    def written(self) -> list[int]:
        """Tokens of each sample that the policy wrote: without the replies of a conversation."""
        return [sum(stop - start for start, stop in spans) for spans in self.spans]

    @cached_property
    def lengths_B(self) -> Int[Tensor, " B"]:
        return to_device(self.widths, self.completion_BT.device)

    @cached_property
    def mask_BT(self) -> Bool[Tensor, "B T"]:
        """1 on the tokens that the policy wrote."""
        width = self.completion_BT.shape[1]
        if all(len(spans) == 1 for spans in self.spans):
            return length_mask(self.lengths_B, width)
        mask = torch.zeros(len(self), width, dtype=torch.bool)
        for row, spans in enumerate(self.spans):
            for start, stop in spans:
                mask[row, start - spans[0][0] : stop - spans[0][0]] = True
        return mask.to(self.completion_BT.device)


@dataclass(frozen=True)
class Signals:
    """What the samples are trained with. The loop's slots fill it in; None before."""

    rewards_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    """NaN: missing."""
    reward_trains: bool = True
    """False: rewards only measure the samples, and one without a reward is trained on all the same."""
    correct: tuple[bool | None, ...] | None = None
    """The checker's verdicts."""
    excluded_B: Bool[Tensor, " B"] | None = None
    """Samples that are not trained on though they have a reward."""
    values_B: Float[Tensor, " B"] = None  # type: ignore[assignment]
    values_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    returns_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    advantages_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    reference_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    """Log-probs of the frozen reference; `previous` is the policy at the start of the step."""
    reference_hidden_BTH: Float[Tensor, "B T H"] = None  # type: ignore[assignment]
    previous_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    previous_hidden_BTH: Float[Tensor, "B T H"] = None  # type: ignore[assignment]
    parent_BT: Float[Tensor, "B T"] = None  # type: ignore[assignment]
    """Log-probs of the parent in distillation, its hidden states, or its most likely tokens at each position."""
    parent_hidden_BTH: Float[Tensor, "B T H"] = None  # type: ignore[assignment]
    parent_top_BTK: Float[Tensor, "B T K"] = None  # type: ignore[assignment]
    parent_ids_BTK: Int[Tensor, "B T K"] = None  # type: ignore[assignment]
    metrics: dict[str, float] = field(default_factory=dict)
    """What the slots logged of the step, under the names of metrics.jsonl."""
    turns: TurnSums | None = None
    """What the metrics of conversations, `turns/…`, are made of."""


@dataclass(frozen=True)
class Packing:
    """How samples become rows of a training pass. Changes nothing but speed."""

    share_prompts: bool = True
    """Whether the model keeps completions apart that follow one copy of their prompt."""
    masked: bool = False
    """Whether that takes a mask, with which wide rows are expensive."""
    per_row: int = 1
    """How many completions of a prompt follow one copy of it."""
    pack: bool = False
    """Whether samples with different prompts may share a row."""
    row_tokens: int = 0
    """How long a row may get by packing."""
    paired: bool = False
    """Whether the samples that are trained on come in twos, the chosen and the rejected text of a pair: a pair is never
    split."""
    owners: tuple[int, ...] | None = None
    """The rank that passes each sample through models. None: this rank passes all of them."""


@dataclass(frozen=True)
class Batch:
    """The samples of a step, or a part of them."""

    samples: Samples
    signals: Signals = field(default_factory=Signals)
    packing: Packing = field(default_factory=Packing)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def trained_BT(self) -> Bool[Tensor, "B T"]:
        """1 on the tokens that are trained on: a sample excluded, or without a reward (NaN) where it trains, has
        none."""
        trained_BT = self.samples.mask_BT
        if self.signals.rewards_B is not None and self.signals.reward_trains:
            trained_BT = trained_BT & ~self.signals.rewards_B.isnan()[:, None]
        if self.signals.excluded_B is not None:
            trained_BT = trained_BT & ~self.signals.excluded_B[:, None]
        return trained_BT

    @property
    def trained_rewards_B(self) -> Float[Tensor, " B"]:
        """The rewards, NaN for samples that are not trained on."""
        rewards_B, excluded_B = self.signals.rewards_B, self.signals.excluded_B
        return rewards_B if excluded_B is None else rewards_B.masked_fill(excluded_B, torch.nan)

    def with_samples(self, **changes: Any) -> "Batch":
        return replace(self, samples=replace(self.samples, **changes))

    def with_signals(self, **changes: Any) -> "Batch":
        return replace(self, signals=replace(self.signals, **changes))

    def with_packing(self, **changes: Any) -> "Batch":
        return replace(self, packing=replace(self.packing, **changes))

    def with_metrics(self, metrics: dict[str, float]) -> "Batch":
        """With these beside what was logged before."""
        return self.with_signals(metrics={**self.signals.metrics, **metrics})

    def with_turns(self, turns: TurnSums) -> "Batch":
        """With these sums over conversations, and the metrics that follow from them."""
        return self.with_signals(turns=turns).with_metrics(turns.metrics())

    def rows(self, indices: Sequence[int]) -> "Batch":
        """The given samples, cut to the longest completion among them."""
        at = to_device(list(indices), self.samples.completion_BT.device)
        spans = self.samples.spans
        width = max(spans[i][-1][1] - spans[i][0][0] for i in indices)

        def pick(name: str, value: Any) -> Any:
            if isinstance(value, Tensor):
                picked = value[at]
                return picked[:, :width] if "_BT" in name else picked
            if name == "metrics" or not isinstance(value, dict | tuple):
                return value
            if isinstance(value, dict):
                return {key: tuple(column[i] for i in indices) for key, column in value.items()}
            return tuple(value[i] for i in indices)

        def picked(record: Record) -> Record:
            return type(record)(**{f.name: pick(f.name, getattr(record, f.name)) for f in fields(record)})

        return Batch(picked(self.samples), picked(self.signals), picked(self.packing))


def to_device(numbers: Sequence[Any] | np.ndarray, device: torch.device) -> Tensor:
    """Whole numbers from the host, without waiting for what the device is doing."""
    tensor = torch.from_numpy(np.array(numbers, dtype=np.int64))  # faster than torch's own reading of lists
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Parts in their order, with their `merged_metrics`."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.samples.completion_BT.shape[1] for part in parts)

    def join(name: str, values: list[Any]) -> Any:
        if name == "metrics":  # see `merged_metrics`
            return {}
        if isinstance(values[0], Tensor):
            return torch.cat([_widened(v, width) if "_BT" in name else v for v in values])
        if isinstance(values[0], dict):
            names = dict.fromkeys(key for value in values for key in value)
            return {
                key: tuple(x for v, part in zip(values, parts, strict=True) for x in v.get(key, (None,) * len(part)))
                for key in names
            }
        return tuple(x for value in values for x in value) if isinstance(values[0], tuple) else values[0]

    def joined(records: list[Record]) -> Record:
        names = [f.name for f in fields(records[0])]
        return type(records[0])(**{name: join(name, [getattr(record, name) for record in records]) for name in names})

    return Batch(
        joined([part.samples for part in parts]),
        joined([part.signals for part in parts]),
        joined([part.packing for part in parts]),
    ).with_signals(**merged_metrics(parts))


def merged_metrics(parts: Sequence[Batch]) -> dict[str, Any]:
    """The signals `metrics` and `turns` of several batches together: means over all of their conversations, and means
    over samples of what else was logged."""
    turns = total(part.signals.turns for part in parts)
    metrics = _averaged([part.signals.metrics for part in parts], [len(part) for part in parts])
    return {"metrics": metrics | (turns.metrics() if turns is not None else {}), "turns": turns}


def _averaged(metrics: Sequence[dict[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """Each metric over the parts that have it, by their numbers of samples."""

    def mean(name: str) -> float:
        seen = [(count, values[name]) for count, values in zip(counts, metrics, strict=True) if name in values]
        return sum(count * value for count, value in seen) / sum(count for count, _ in seen)

    return {name: mean(name) for name in dict.fromkeys(name for values in metrics for name in values)}


def _widened(values_BT: Tensor, width: int) -> Tensor:
    blank_BT = values_BT.new_zeros(len(values_BT), width, *values_BT.shape[2:])
    blank_BT[:, : values_BT.shape[1]] = values_BT
    return blank_BT
