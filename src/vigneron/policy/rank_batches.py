"""A batch over ranks: which rank passes which samples through models, and what they compute put together again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.distributed import ranks
from vigneron.policy.microbatches import bundle_width, microbatches, samples_by_prompt


def assign_ranks(batch: Batch) -> Batch:
    """Give every sample to a rank, so that all have about as many tokens to pass. One rank keeps all of them."""
    return batch if ranks.world_size() == 1 else batch.with_packing(owners=balanced_owners(batch, ranks.world_size()))


def balanced_owners(batch: Batch, count: int) -> tuple[int, ...]:
    """The largest first, each to the rank with the fewest tokens. The samples of a prompt stay together where there are
    enough prompts; the two texts of a pair always do."""
    units = samples_by_prompt(batch)
    if len(units) < 2 * count and not batch.packing.paired:
        units = [[i] for i in range(len(batch))]
    widths = [bundle_width(batch, unit) for unit in units]
    tokens, owners = [0] * count, [0] * len(batch)
    for number in sorted(range(len(units)), key=lambda number: (-widths[number], number)):
        rank = tokens.index(min(tokens))
        tokens[rank] += widths[number]
        for i in units[number]:
            owners[i] = rank
    return tuple(owners)


def rank_microbatches(batch: Batch, budget: int) -> list[Batch]:
    """The microbatches of at most `budget` tokens that this rank passes through models.

    Every rank makes the same number of passes, which sharded weights need: a rank that has none left repeats a sample
    that is excluded.
    """
    owners = batch.packing.owners
    if owners is None:
        return microbatches(batch, budget)
    mine = [i for i, owner in enumerate(owners) if owner == ranks.rank()]
    parts = microbatches(batch.rows(mine), budget) if mine else []
    most = int(ranks.all_reduce_max(len(parts)))
    if len(parts) == most:
        return parts
    some = batch.rows([0, 1] if batch.packing.paired else [0])
    idle = some.with_packing(owners=(-1,) * len(some)).with_signals(
        excluded_B=torch.ones_like(some.samples.truncated_B)
    )
    return [*parts, *[idle] * (most - len(parts))]


def map_microbatches(batch: Batch, budget: int, *functions: Callable[[Batch], dict[str, Tensor]]) -> dict[str, Any]:
    """Tensors that the functions compute for microbatches of at most `budget` tokens, put together for the whole batch.

    Hidden states (`_BTH`) are large, and stay with the rank that will use them.
    """
    whole: dict[str, Tensor] = {}
    completion_BT, names_B = batch.samples.completion_BT, batch.samples.sample_B
    numbered = batch.with_samples(sample_B=torch.arange(len(batch), device=completion_BT.device))
    for part in rank_microbatches(numbered, budget):
        owners, at_B = part.packing.owners, part.samples.sample_B
        rows = at_B if owners is None or owners[0] >= 0 else at_B[:0]
        named = part.with_samples(sample_B=names_B[at_B])
        for name, values in ((n, v) for function in functions for n, v in function(named).items()):
            by_token = "_BT" in name
            if name not in whole:
                inner = (completion_BT.shape[1], *values.shape[2:]) if by_token else values.shape[1:]
                whole[name] = values.new_zeros(len(batch), *inner)
            if by_token:
                whole[name][rows, : values.shape[1]] = values[: len(rows)]
            else:
                whole[name][rows] = values[: len(rows)]
    if batch.packing.owners is not None:
        for name in sorted(whole):
            if not name.endswith("_BTH"):
                ranks.all_reduce_sum(whole[name])
    return whole
