"""Packing of samples for a teacher-forced pass: a prompt once, then several of its completions in one row.

    row:       p p p p a a a b b b b q q c c ·        a and b continue the prompt p, c another one, q; · is padding
    position:  0 1 2 3 4 5 6 4 5 6 7 0 1 2 3 0
    attends to: its prompt and the tokens before it in its own completion

A prompt with its completions is a bundle. A row holds one bundle, or several with packing.
A completion's last token is left out if the state after it is not needed.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vigneron.batch import Batch, to_device
from vigneron.policy.architecture import is_recurrent
from vigneron.policy.attention import may_have_windows, shrunken_windows
from vigneron.policy.cuda_graphs import round_to_bucket, round_up
from vigneron.policy.longrope import LongRope
from vigneron.policy.microbatches import packed_rows
from vigneron.policy.model import Policy, close_enough

# Attention kernels need masks whose width is a multiple of this.
MASK_ALIGNMENT = 8


@dataclass(frozen=True)
class Layout:
    """Rows R of width S for the model, and the indices in R · S of the N completion tokens and of each sample."""

    ids_RS: Int[Tensor, "R S"]
    positions_RS: Int[Tensor, "R S"]
    allowed_R1SS: Bool[Tensor, "R 1 S S"] | None
    predicts_N: Int[Tensor, " N"]
    """Index of the state that predicts each sampled token."""
    token_N: Int[Tensor, " N"]
    into_N: Int[Tensor, " N"]
    """Index of the token in B · T."""
    prompt_end_B: Int[Tensor, " B"]
    completion_end_B: Int[Tensor, " B"]


def lay_out(
    batch: Batch,
    pad_id: int,
    device: torch.device,
    *,
    with_last: bool = False,
    for_graphs: bool = False,
    long_rope: LongRope | None = None,
) -> Layout:
    """Pack a batch. `with_last`: include the last token of each completion, for a critic that reads the state after it.

    `for_graphs`: round rows and width up, so that few shapes occur and each can be a CUDA graph. `long_rope`: the
    positions of long sequences are marked.
    """
    completions = batch.samples.completion_lists()
    rows = packed_rows(batch)
    if long_rope is not None:  # one copy of the prompt for each set of frequencies
        sizes = [len(prompt) for prompt in batch.samples.prompt_ids]
        rows = [
            [part for bundle in row for part in long_rope.split(sizes[bundle[0]], bundle, batch.samples.widths)]
            for row in rows
        ]
    fed = [len(c) if with_last else len(c) - 1 for c in completions]
    shared = any(len(row) > 1 or len(row[0]) > 1 for row in rows)
    width = max(sum(len(batch.samples.prompt_ids[b[0]]) + sum(fed[i] for i in b) for b in row) for row in rows)
    if for_graphs or shared:
        width = (
            round_to_bucket(width, per_doubling=8, smallest_step=16) if for_graphs else round_up(width, MASK_ALIGNMENT)
        )
    count = round_to_bucket(len(rows)) if for_graphs else len(rows)

    # Python lists are several times faster than arrays for thousands of short pieces.
    filler = _filler(batch, pad_id)
    ids: list[int] = []
    positions: list[int] = []
    owner: list[int] = []
    bundle_of: list[int] = []
    prompt_end, first, completion_end = ([0] * len(batch) for _ in range(3))
    for r, row in enumerate(rows, start=1):
        for k, bundle in enumerate(row):
            prompt = batch.samples.prompt_ids[bundle[0]]
            size, begin = len(prompt), len(ids)
            offset = long_rope.offset(size, batch.samples.widths[bundle[0]]) if long_rope is not None else 0
            ids += prompt
            positions += range(offset, offset + size)
            owner += [0] * size
            for j, i in enumerate(bundle, start=1):
                prompt_end[i] = begin + size - 1
                first[i] = len(ids)
                ids += completions[i][: fed[i]]
                positions += range(offset + size, offset + size + fed[i])
                owner += [j] * fed[i]
                completion_end[i] = len(ids) - 1
            bundle_of += [k] * (len(ids) - begin)
        spare = (r if r < len(rows) else count) * width - len(ids)
        ids += [filler] * spare
        positions += [0] * spare
        owner += [-1] * spare
        bundle_of += [-1] * spare

    predicts: list[int] = []
    tokens: list[int] = []
    into: list[int] = []
    columns = batch.samples.completion_BT.shape[1]
    for i, spans in enumerate(batch.samples.spans):
        for start, stop in spans:
            start, stop = start - spans[0][0], stop - spans[0][0]
            if start == 0:  # the first token is predicted by the prompt's last state
                predicts.append(prompt_end[i])
            predicts += range(first[i] + max(start - 1, 0), first[i] + stop - 1)
            tokens += completions[i][start:stop]
            into += range(i * columns + start, i * columns + stop)

    lists = [ids, positions, owner, bundle_of, predicts, tokens, into, prompt_end, completion_end]
    packed = to_device([number for numbers in lists for number in numbers], device)
    cut = packed.split([len(numbers) for numbers in lists])
    shape = (count, width)
    allowed_R1SS = _allowed(cut[2].view(shape), cut[3].view(shape)) if shared else None
    return Layout(cut[0].view(shape), cut[1].view(shape), allowed_R1SS, *cut[4:])


def _filler(batch: Batch, pad_id: int) -> int:
    """The token of padding: one of a prompt. The padding token's own embedding may be 0, and in a packed row it attends
    to nothing else: its state stays 0, where the gradient of a norm (Gemma 3n) is infinite, and 0 · ∞ is NaN."""
    return next((token for prompt in batch.samples.prompt_ids for token in prompt if token != pad_id), pad_id)


def _allowed(owner_RS: Int[Tensor, "R S"], bundle_RS: Int[Tensor, "R S"]) -> Bool[Tensor, "R 1 S S"]:
    """The attention mask: within a bundle, the prompt (owner 0) and the token's own completion, causally."""
    mine_RSS = owner_RS[:, :, None] == owner_RS[:, None, :]
    prompt_RSS = (owner_RS == 0)[:, None, :]
    bundle_RSS = bundle_RS[:, :, None] == bundle_RS[:, None, :]
    before_SS = torch.ones(owner_RS.shape[1], owner_RS.shape[1], dtype=torch.bool, device=owner_RS.device).tril()
    return ((mine_RSS | prompt_RSS) & bundle_RSS & before_SS)[:, None]


@torch.no_grad()
def can_share_prompts(policy: Policy) -> bool:
    """Whether the model respects the packed mask: computes two completions of one prompt together and compares the
    second with the same completion alone, behind a window's end if it has one. Some layers ignore a mask; recurrent
    ones always do, however small the difference."""
    if is_recurrent(type(policy.causal), policy.causal.config):
        return False

    def ids(*numbers: int) -> Tensor:
        return to_device([numbers], policy.device)

    size = policy.text_config.vocab_size
    prompt, one, two = ([i % size for i in numbers] for numbers in (range(1, 4), range(4, 9), range(9, 14)))
    owner_RS = ids(*[0] * 3, *[1] * 5, *[2] * 5)
    try:
        with shrunken_windows(policy.causal):
            alone = policy.trunk(ids(*prompt, *two), ids(*range(8)))
            if not policy.own_attention and may_have_windows(policy.text_config):
                return False
            together = policy.trunk(
                ids(*prompt, *one, *two), ids(*range(8), *range(3, 8)), _allowed(owner_RS, owner_RS * 0)
            )
    except Exception:  # any model is possible: one that cannot take such a mask does not share prompts
        return False
    return close_enough(together[0, 8:], alone[0, 3:])
