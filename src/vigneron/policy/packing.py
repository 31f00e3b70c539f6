"""Packing of samples for a teacher-forced pass: a prompt once, then its completions, then the next prompt.

    row:       p p p p a a a b b b b q q c c          a and b continue the prompt p, c another one, q
    position:  0 1 2 3 4 5 6 4 5 6 7 0 1 2 3
    attends to: its prompt and the tokens before it in its own completion

A prompt with its completions is a bundle. With our attention, one row holds all samples of a pass, and attention sees
each in a row of its own (`attention.Unpacked`). Models with their own attention keep samples apart by a mask, in rows
that are shorter.
A completion's last token is left out if the state after it is not needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vigneron.batch import Batch, to_device
from vigneron.policy.architecture import is_recurrent
from vigneron.policy.attention import Unpacked, may_have_windows, shrunken_windows
from vigneron.policy.cuda_graphs import round_to_bucket, round_up
from vigneron.policy.microbatches import bundles, packed_rows
from vigneron.policy.model import Policy, close_enough

# Attention kernels need masks whose width is a multiple of this.
MASK_ALIGNMENT = 8


@dataclass(frozen=True)
class Layout:
    """Rows R of width S for the model, and the indices in R · S of the N completion tokens and of each sample."""

    ids_RS: Int[Tensor, "R S"]
    positions_RS: Int[Tensor, "R S"]
    apart: Bool[Tensor, "R 1 S S"] | Unpacked | None
    """What keeps samples of a row apart; see `Policy.hidden`."""
    predicts_N: Int[Tensor, " N"]
    """Index of the state that predicts each sampled token."""
    token_N: Int[Tensor, " N"]
    into_N: Int[Tensor, " N"]
    """Index of the token in B · T."""
    prompt_end_B: Int[Tensor, " B"]
    completion_end_B: Int[Tensor, " B"]


@dataclass
class _Rows:
    """Rows while they are written, one behind the other: Python lists, which are several times faster than arrays for
    thousands of short pieces."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    """Number of a token's completion in its bundle; 0 in a prompt, −1 in padding."""
    bundle_of: list[int] = field(default_factory=list)

    def add(self, ids: Sequence[int], first_position: int, owner: int, bundle: int) -> int:
        """Append tokens; returns the index of the first."""
        begin = len(self.ids)
        self.ids += ids
        self.positions += range(first_position, first_position + len(ids))
        self.owner += [owner] * len(ids)
        self.bundle_of += [bundle] * len(ids)
        return begin

    def pad(self, to: int, filler: int) -> None:
        spare = to - len(self.ids)
        self.ids += [filler] * spare
        self.positions += [0] * spare
        self.owner += [-1] * spare
        self.bundle_of += [-1] * spare


def lay_out(batch: Batch, policy: Policy, *, with_last: bool = False, graphs: bool = True) -> Layout:
    """Pack a batch. `with_last`: include the last token of each completion, for a critic that reads the state after it.

    Passes that can be CUDA graphs have rounded sizes, so that few occur; without `graphs` none are.
    """
    unpacks = policy.unpacks()
    completions = batch.samples.completion_lists()
    prompts = batch.samples.prompt_ids
    rows = [bundles(batch)] if unpacks else packed_rows(batch)
    if (long_rope := policy.long_rope) is not None:  # one copy of the prompt for each set of frequencies
        rows = [
            [part for bundle in row for part in long_rope.split(len(prompts[bundle[0]]), bundle, batch.samples.widths)]
            for row in rows
        ]
    fed = [len(c) if with_last else len(c) - 1 for c in completions]
    widths = [sum(len(prompts[b[0]]) + sum(fed[i] for i in b) for b in row) for row in rows]
    rounded = graphs and policy.uses_graphs(sum(widths))
    shared = any(len(row) > 1 or len(row[0]) > 1 for row in rows)
    width, count = max(widths), len(rows)
    if rounded:
        width, count = round_to_bucket(width + unpacks, per_doubling=8, smallest_step=16), round_to_bucket(count)
    elif shared and not unpacks:
        width = round_up(width, MASK_ALIGNMENT)

    packed, filler = _Rows(), _filler(batch, policy.pad_id)
    prompt_start, prompt_end, first, completion_end = ([0] * len(batch) for _ in range(4))
    for r, row in enumerate(rows, start=1):
        for k, bundle in enumerate(row):
            prompt = prompts[bundle[0]]
            offset = policy.position_offset(len(prompt), batch.samples.widths[bundle[0]])
            begin = packed.add(prompt, offset, 0, k)
            for j, i in enumerate(bundle, start=1):
                prompt_start[i], prompt_end[i] = begin, begin + len(prompt) - 1
                first[i] = packed.add(completions[i][: fed[i]], offset + len(prompt), j, k)
                completion_end[i] = len(packed.ids) - 1
        packed.pad((r if r < len(rows) else count) * width, filler)

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

    lists = [packed.ids, packed.positions, predicts, tokens, into, prompt_end, completion_end]
    apart: Tensor | Unpacked | None = None
    if unpacks and (shared or rounded):
        sizes = [len(prompt) for prompt in prompts]
        apart = _unpacked(rows[0], prompt_start, sizes, first, fed, width, rounded, policy.device)
    elif shared:
        lists += [packed.owner, packed.bundle_of]
    flat = to_device([number for numbers in lists for number in numbers], policy.device)
    cut = flat.split([len(numbers) for numbers in lists])
    shape = (count, width)
    if shared and not unpacks:
        apart = _allowed(cut[7].view(shape), cut[8].view(shape))
    return Layout(cut[0].view(shape), cut[1].view(shape), apart, *cut[2:7])


def _unpacked(
    row: Sequence[Sequence[int]],
    prompt_start: Sequence[int],
    prompt_size: Sequence[int],
    first: Sequence[int],
    fed: Sequence[int],
    packed: int,
    rounded: bool,
    device: torch.device,
) -> Unpacked:
    """The places of a row's samples. A sample is a row of `prompt_size` and `fed` tokens, which begin at `prompt_start`
    and `first` in the `packed` ones. Rounded sizes have a spare row, where padding is."""
    samples = [i for bundle in row for i in bundle]
    width = max(prompt_size[i] + fed[i] for i in samples)
    count, spare = len(samples), packed - 1
    if rounded:
        width = round_to_bucket(width, per_doubling=2, smallest_step=16)
        count = round_to_bucket(count + 1, per_doubling=2)
    token_BW = np.full((count, width), spare if rounded else 0, dtype=np.int64)
    place_N = np.full(packed, len(samples) * width, dtype=np.int64)  # of padding: the spare row
    several = [bundle for bundle in row if len(bundle) > 1]
    group = max((len(bundle) for bundle in several), default=1)
    total = sum(prompt_size[bundle[0]] for bundle in several)
    more = round_to_bucket(total, per_doubling=2) if rounded and total else total
    prompt_M = np.full(more, spare, dtype=np.int64)
    places_MG = np.full((more, group), -1, dtype=np.int64)
    at = b = 0
    for bundle in row:
        size = prompt_size[bundle[0]]
        prompt = np.arange(prompt_start[bundle[0]], prompt_start[bundle[0]] + size)
        place_N[prompt] = b * width + np.arange(size)
        if len(bundle) > 1:
            prompt_M[at : at + size] = prompt
            rows = np.arange(b, b + len(bundle))
            places_MG[at : at + size, : len(bundle)] = rows * width + np.arange(size)[:, None]
            at += size
        for i in bundle:
            completion = np.arange(first[i], first[i] + fed[i])
            token_BW[b, :size] = prompt
            token_BW[b, size : size + fed[i]] = completion
            place_N[completion] = b * width + size + np.arange(fed[i])
            b += 1
    parts = (token_BW, place_N, prompt_M, places_MG)
    flat = to_device(np.concatenate([part.ravel() for part in parts]), device).split([part.size for part in parts])
    return Unpacked(*(numbers.view(part.shape) for numbers, part in zip(flat, parts, strict=True)))


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

    size = policy.text_config.vocab_size
    prompt, one, two = ([i % size for i in numbers] for numbers in (range(1, 4), range(4, 9), range(9, 14)))
    try:
        with shrunken_windows(policy.causal):
            alone = policy.trunk(*_one_row(policy, [*prompt, *two], range(8)))
            if not policy.own_attention and may_have_windows(policy.text_config):
                return False
            positions = [*range(8), *range(3, 8)]
            together = policy.trunk(*_one_row(policy, [*prompt, *one, *two], positions), _two_apart(policy))
    except Exception:  # any model is possible: one that cannot take such a mask does not share prompts
        return False
    return close_enough(together[0, 8:], alone[0, 3:])


def _one_row(policy: Policy, ids: Sequence[int], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    row, at = to_device([ids, list(positions)], policy.device)[:, None]
    return row, at


def _two_apart(policy: Policy) -> Tensor | Unpacked:
    """A prompt of 3 tokens with two completions of 5."""
    if policy.own_attention:
        return _unpacked([[0, 1]], [0, 0], [3, 3], [3, 8], [5, 5], 13, False, policy.device)
    owner_RS = to_device([[0] * 3 + [1] * 5 + [2] * 5], policy.device)
    return _allowed(owner_RS, owner_RS * 0)
