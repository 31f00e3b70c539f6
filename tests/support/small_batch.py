"""A batch without a model."""

import math
from collections.abc import Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import torch

from vigneron.batch import Batch, Samples


def make_batch(prompt_lengths: list[int], lengths: list[int], **fields: Any) -> Batch:
    """One span a row; token t of row i is 100 i + t, and what stands past a row's end is 999."""
    size, width = len(lengths), max(lengths)
    ids = torch.full((size, width), 999)
    for i, length in enumerate(lengths):
        ids[i, :length] = 100 * i + torch.arange(length)
    plain = Batch(
        Samples(
            prompt_ids=tuple((7,) * length for length in prompt_lengths),
            completion_BT=ids,
            spans=tuple(((p, p + c),) for p, c in zip(prompt_lengths, lengths, strict=True)),
            behaviour_BT=-ids.float(),
            truncated_B=torch.arange(size) % 2 == 0,
            group_B=torch.arange(size) // 2,
            sample_B=torch.arange(size) + 40,
            prompts=tuple(f"prompt {i}" for i in range(size)),
            completions=tuple(f"completion {i}" for i in range(size)),
        )
    )
    return changed(plain, **fields)


def changed(batch: Batch, **fields: Any) -> Batch:
    """With other values in whichever of the three records has the field."""
    records = {name: {f.name for f in fields_of(getattr(batch, name))} for name in ("samples", "signals", "packing")}
    for field, value in fields.items():
        (name,) = [name for name, known in records.items() if field in known]
        batch = replace(batch, **{name: replace(getattr(batch, name), **{field: value})})
    return batch


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Of prompts and completions in token ids, one group each."""
    width = max(len(completion) for _, completion in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    for row, (_, completion) in enumerate(pairs):
        ids[row, : len(completion)] = torch.tensor(completion)
    return Batch(
        Samples(
            prompt_ids=tuple(tuple(prompt) for prompt, _ in pairs),
            completion_BT=ids,
            spans=tuple(((len(p), len(p) + len(c)),) for p, c in pairs),
            behaviour_BT=torch.zeros(len(pairs), width),
            truncated_B=torch.zeros(len(pairs), dtype=torch.bool),
            group_B=torch.arange(len(pairs)),
            sample_B=torch.arange(len(pairs)),
            prompts=("",) * len(pairs),
            completions=("",) * len(pairs),
        )
    )


def rewarded_batch(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    behaviour: Sequence[Sequence[float]],
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
) -> Batch:
    """Samples with their log-probs and rewards, in float64; without groups, each is its own."""
    batch = batch_of([(list(p), list(c)) for p, c in zip(prompts, completions, strict=True)])
    behaviour_BT = torch.full(batch.samples.completion_BT.shape, math.nan, dtype=torch.float64)
    for row, logprobs in enumerate(behaviour):
        behaviour_BT[row, : len(completions[row])] = torch.tensor(logprobs, dtype=torch.float64)
    group_B = batch.samples.group_B if groups is None else torch.tensor(groups)
    rewards_B = torch.tensor(rewards, dtype=torch.float64)
    return changed(batch, behaviour_BT=behaviour_BT, group_B=group_B, rewards_B=rewards_B)
