"""How a batch is split into microbatches, and the samples of each into rows of a training pass."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from vigneron.batch import Batch


def length_buckets(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split rows into parts of at most `budget` tokens each, padding counted; similar lengths stay together.

    A row longer than the budget is a part of its own. The longest come first: a size that does not fit in
    memory fails immediately.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    parts: list[list[int]] = []
    for row in order:
        if parts and lengths[parts[-1][0]] * (len(parts[-1]) + 1) <= budget:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def microbatches(batch: Batch, budget: int) -> list[Batch]:
    """Parts of at most `budget` tokens; completions of a prompt stay together where it pays, the two texts of a pair
    always."""
    if batch.packing.masked or not batch.packing.share_prompts:
        return _padded_microbatches(batch, budget)
    choices = (_unmasked_parts(batch.with_packing(per_row=per_row), budget) for per_row in _per_row_choices(batch))

    def cost(choice: _Parts) -> tuple[int, int]:
        """Parts above a limit that could be split, then tokens and passes."""
        several = [(samples, tokens) for samples, tokens in choice.parts if len(samples) > 1]
        widths = [max(sample_width(batch, i) for i in samples) for samples, _ in several]
        sizes = [(tokens, len(samples) * width) for (samples, tokens), width in zip(several, widths, strict=True)]
        return sum(not fits(*size, budget) for size in sizes), sum(PASS_TOKENS + tokens for _, tokens in choice.parts)

    best = next(choices)
    if len(best.parts) > 1 or cost(best)[0]:  # one pass that has each prompt once costs least
        best = min((best, *choices), key=cost)
    return [best.batch.rows(sorted(samples)) for samples, _ in best.parts]


class _Parts(NamedTuple):
    """Parts of a batch: their samples, and their tokens."""

    batch: Batch
    parts: list[tuple[list[int], int]]


def _unmasked_parts(batch: Batch, budget: int) -> _Parts:
    """The longest first; a bundle that is longer than the budget is a part of its own."""
    units = _pairs(batch) if batch.packing.paired else [[bundle] for bundle in bundles(batch)]
    longest = [max(sample_width(batch, i) for bundle in unit for i in bundle) for unit in units]
    parts: list[tuple[list[int], int]] = []
    widest = 0
    for number in sorted(range(len(units)), key=lambda number: (-longest[number], number)):
        samples = [i for bundle in units[number] for i in bundle]
        width = sum(bundle_width(batch, bundle) for bundle in units[number])
        together, tokens = parts[-1] if parts else ([], 0)
        if parts and fits(tokens + width, (len(together) + len(samples)) * widest, budget):
            together.extend(samples)
            parts[-1] = (together, tokens + width)
        else:
            parts.append((samples, width))
            widest = longest[number]
    return _Parts(batch, parts)


PASS_TOKENS = 700
"""Tokens that take as long as what every pass costs, however few tokens it has."""
UNPACKED = 0.125
"""Memory of a token in the rows that attention sees, padding counted, as a share of a packed token's."""


def fits(tokens: int, unpacked: int, budget: int) -> bool:
    """Whether a pass of so many packed tokens, and tokens in rows for attention, takes at most the memory of one of
    `budget` tokens that share no prompt."""
    return tokens + UNPACKED * unpacked <= (1 + UNPACKED) * budget


def _per_row_choices(batch: Batch) -> list[int]:
    """How many completions may follow one copy of their prompt: all, half of them …, one."""
    most = max((len(run) for run in samples_by_prompt(batch)), default=1)
    choices = [most]
    while choices[-1] > 1:
        choices.append(-(-choices[-1] // 2))
    return choices


def _padded_microbatches(batch: Batch, budget: int) -> list[Batch]:
    """For rows of equal width, padding counted."""
    batch = batch.with_packing(per_row=completions_per_row(batch, budget))
    if batch.packing.pack:  # rows as long as the longest sample: packing fills what was padding beside it
        longest = max(bundle_width(batch, bundle) for bundle in bundles(batch))
        batch = batch.with_packing(row_tokens=min(longest, budget))
    rows = _pairs(batch) if batch.packing.paired else packed_rows(batch)
    widths = [_width(batch, row) for row in rows]
    # In their old order, so that the part falls into the same rows again.
    return [
        batch.rows(sorted(i for row in part for bundle in rows[row] for i in bundle))
        for part in length_buckets(widths, budget)
    ]


def bundles(batch: Batch) -> list[list[int]]:
    """Samples that share a row: at most `per_row`, with the same prompt."""
    per_row = batch.packing.per_row
    return [run[at : at + per_row] for run in samples_by_prompt(batch) for at in range(0, len(run), per_row)]


def packed_rows(batch: Batch) -> list[list[list[int]]]:
    """The bundles of each row: one, or with packing as many as `row_tokens` has room for.

    First-fit decreasing. A part that takes whole rows falls into the same rows again.
    """
    all_bundles = bundles(batch)
    if not batch.packing.pack:
        return [[bundle] for bundle in all_bundles]
    widths = [bundle_width(batch, bundle) for bundle in all_bundles]
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(all_bundles)), key=lambda number: (-widths[number], number)):
        row = next((r for r, left in enumerate(room) if left >= widths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(batch.packing.row_tokens)
        rows[row].append(number)
        room[row] -= widths[number]
    return [[all_bundles[number] for number in row] for row in rows]


def samples_by_prompt(batch: Batch) -> list[list[int]]:
    """The samples of each prompt, in any order: a part of the batch then falls into the same rows again. A pair shares
    its row with no other sample."""
    if batch.packing.paired:
        return [[i, i + 1] for i in range(0, len(batch), 2)]
    samples: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(batch.samples.prompt_ids):
        samples.setdefault(prompt, []).append(i)
    return list(samples.values())


def completions_per_row(batch: Batch, budget: int) -> int:
    """Of 1, 2, 4 … completions behind one copy of a prompt, the number that costs least and fits the budget.

    For models that need a mask. A row of width W costs W token passes, and W² pairs of attention: some 3,000 pairs cost
    as much as a token in small models, a third of that with a mask, which the fast kernels cannot take.
    """
    if not batch.packing.share_prompts:
        return 1
    runs = samples_by_prompt(batch)
    most = max((len(run) for run in runs), default=1)
    choices = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]

    def cost(per_row: int) -> float:
        rows = [run[at : at + per_row] for run in runs for at in range(0, len(run), per_row)]
        widths = [bundle_width(batch, row) for row in rows]
        if per_row > 1 and max(widths) > budget:
            return math.inf
        return sum(width * (1 + width / (3072 if per_row == 1 else 1024)) for width in widths)

    return min(choices, key=cost)


def bundle_width(batch: Batch, bundle: Sequence[int]) -> int:
    """Tokens of a prompt and its completions."""
    widths = batch.samples.widths
    return len(batch.samples.prompt_ids[bundle[0]]) + sum([widths[i] for i in bundle])


def sample_width(batch: Batch, i: int) -> int:
    """Tokens of a sample with its prompt."""
    return len(batch.samples.prompt_ids[i]) + batch.samples.widths[i]


def _pairs(batch: Batch) -> list[list[list[int]]]:
    """The bundles of each pair: one, or two."""
    return [[pair] if batch.packing.per_row > 1 else [[i] for i in pair] for pair in samples_by_prompt(batch)]


def _width(batch: Batch, together: Sequence[Sequence[int]]) -> int:
    """Of bundles one behind the other in a packed row, or in rows of their own with the same padding."""
    widths = [bundle_width(batch, bundle) for bundle in together]
    return sum(widths) if batch.packing.pack else len(widths) * max(widths)
