"""How samples are laid out for a teacher-forced pass: a prompt once, then several of its completions in one row.

    row:       p p p p a a a b b b b ·        a and b continue the same prompt; · is padding
    position:  0 1 2 3 4 5 6 4 5 6 7 0
    sees:      the prompt, and what stands before it in its own completion

A completion's last token is left out where nobody reads the state after it.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vigneron.batch import Batch, bundles

# Kernels read masks of a width that is a multiple of this.
MASK_ALIGNMENT = 8
REPEATABLE_WIDTH = 16


@dataclass(frozen=True)
class Layout:
    """Rows R of width S for the model, and where in R · S each of the N completion tokens and each sample is found."""

    ids_RS: Int[Tensor, "R S"]
    positions_RS: Int[Tensor, "R S"]
    allowed_R1SS: Bool[Tensor, "R 1 S S"] | None
    predicts_N: Int[Tensor, " N"]
    """The state that predicts each token the policy wrote."""
    token_N: Int[Tensor, " N"]
    into_N: Int[Tensor, " N"]
    """The token's place in B · T."""
    prompt_end_B: Int[Tensor, " B"]
    completion_end_B: Int[Tensor, " B"]


def lay_out(
    batch: Batch, pad_id: int, device: torch.device, *, with_last: bool = False, repeatable: bool = False
) -> Layout:
    """`with_last`: also the last token of each completion, for a critic that reads the state after it.

    `repeatable`: rows and width are rounded up, so that few shapes occur and each can be a graph.
    """
    completions = batch.completion_lists()
    rows = bundles(batch)
    fed = [len(c) if with_last else len(c) - 1 for c in completions]
    widths = [len(batch.prompt_ids[row[0]]) + sum(fed[i] for i in row) for row in rows]
    shared = any(len(row) > 1 for row in rows)
    width = max(widths)
    if repeatable or shared:
        width = _rounded(width, REPEATABLE_WIDTH if repeatable else MASK_ALIGNMENT)
    count = repeatable_rows(len(rows)) if repeatable else len(rows)

    ids = np.full((count, width), pad_id, dtype=np.int64)
    positions = np.zeros((count, width), dtype=np.int64)
    owner = np.full((count, width), -1, dtype=np.int64)
    prompt_end = np.zeros(len(batch), dtype=np.int64)
    completion_end = np.zeros(len(batch), dtype=np.int64)
    first = np.zeros(len(batch), dtype=np.int64)
    for r, row in enumerate(rows):
        prompt = batch.prompt_ids[row[0]]
        size = len(prompt)
        ids[r, :size] = prompt
        positions[r, :size] = np.arange(size)
        owner[r, :size] = 0
        at = size
        for j, i in enumerate(row, start=1):
            stop = at + fed[i]
            ids[r, at:stop] = completions[i][: fed[i]]
            positions[r, at:stop] = np.arange(size, size + fed[i])
            owner[r, at:stop] = j
            prompt_end[i] = r * width + size - 1
            first[i] = r * width + at
            completion_end[i] = r * width + stop - 1
            at = stop

    predicts, tokens, into = [], [], []
    columns = batch.completion_BT.shape[1]
    for i, spans in enumerate(batch.spans):
        written = np.concatenate([np.arange(start - spans[0][0], stop - spans[0][0]) for start, stop in spans])
        predicts.append(np.where(written == 0, prompt_end[i], first[i] + written - 1))
        tokens.append(np.asarray(completions[i], dtype=np.int64)[written])
        into.append(i * columns + written)

    flat = [ids, positions, owner, np.concatenate(predicts), np.concatenate(tokens), np.concatenate(into)]
    ids_, positions_, owner_, predicts_, tokens_, into_, prompt_end_, completion_end_ = _to_device(
        [*flat, prompt_end, completion_end], device
    )
    return Layout(
        ids_,
        positions_,
        _allowed(owner_) if shared else None,
        predicts_,
        tokens_,
        into_,
        prompt_end_,
        completion_end_,
    )


def repeatable_rows(count: int) -> int:
    """Up to the next of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 …: at most a quarter more."""
    return _rounded(count, max(1, 2 ** (count.bit_length() - 3)))


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _allowed(owner_RS: Int[Tensor, "R S"]) -> Bool[Tensor, "R 1 S S"]:
    """Who sees whom: the prompt (owner 0) and one's own completion, never forward."""
    mine_RSS = owner_RS[:, :, None] == owner_RS[:, None, :]
    prompt_RSS = (owner_RS == 0)[:, None, :]
    before_SS = torch.ones(owner_RS.shape[1], owner_RS.shape[1], dtype=torch.bool, device=owner_RS.device).tril()
    return ((mine_RSS | prompt_RSS) & before_SS)[:, None]


def _to_device(arrays: list[np.ndarray], device: torch.device) -> list[Tensor]:
    """One copy for all: each costs a launch, and without pinned memory a wait."""
    packed = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    packed = (packed.pin_memory() if device.type == "cuda" else packed).to(device, non_blocking=True)
    edges = np.cumsum([0, *(array.size for array in arrays)])
    cut = [packed[start:stop] for start, stop in pairwise(edges)]
    return [part.view(array.shape) for part, array in zip(cut, arrays, strict=True)]
