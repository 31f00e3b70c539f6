"""The passes of an update as training would cut them, from a config: their sizes, without samples."""

from collections import Counter
from dataclasses import dataclass

import torch

from vigneron.batch import Batch, Samples
from vigneron.config import Config
from vigneron.policy.cuda_graphs import round_to_bucket
from vigneron.policy.microbatches import microbatches

MOST_PROMPTS = 64
"""Of a step that are cut: the passes of more are like these."""


@dataclass(frozen=True, order=True)
class PassSize:
    """Packed tokens, and the rows of samples that attention sees."""

    tokens: int
    rows: int
    predicted: int
    """Tokens that the head computes."""

    def rounded(self, width: int) -> "PassSize":
        """As a CUDA graph has it, of samples of `width` tokens; wider rows count as more of them."""
        tokens = round_to_bucket(self.tokens + 1, per_doubling=8, smallest_step=16)
        wider = round_to_bucket(width, per_doubling=2, smallest_step=16)
        return PassSize(tokens, -(-round_to_bucket(self.rows + 1, per_doubling=2) * wider // width), self.predicted)


def passes_of(config: Config, longest_prompt: int, budget: int, *, packs: bool) -> list[PassSize]:
    """The passes over a step's samples of the longest prompt, the largest first. `packs`: a shared prompt is passed
    once."""
    reads, new = config.method.reads, config.completion_tokens
    if reads == "prompts" and packs:
        prompts = min(config.prompts_per_step, MOST_PROMPTS)
        parts = microbatches(_samples(prompts, config.group_size, longest_prompt, new), budget)
        sizes = (_size(part, longest_prompt, new) for part in parts)
        return sorted(sizes, reverse=True)
    together = 2 if reads == "pairs" else 1
    samples = config.prompts_per_step * (config.group_size if reads == "prompts" else together)
    width = longest_prompt + (new if reads == "prompts" else 0)
    rows = max(together, min(budget // width, samples))
    return [PassSize(rows * width, rows, rows * (new if reads == "prompts" else width))]


def _samples(prompts: int, group: int, prompt: int, new: int) -> Batch:
    count = prompts * group
    zeros_BT = torch.zeros(()).expand(count, new)
    return Batch(
        Samples(
            prompt_ids=tuple((i // group,) * prompt for i in range(count)),
            completion_BT=zeros_BT.long(),
            spans=(((prompt, prompt + new),),) * count,
            behaviour_BT=zeros_BT,
            truncated_B=torch.zeros(count, dtype=torch.bool),
            group_B=torch.arange(count) // group,
            sample_B=torch.arange(count),
            prompts=("",) * count,
            completions=("",) * count,
        )
    )


def _size(part: Batch, prompt: int, new: int) -> PassSize:
    rows = len(part)
    copies = Counter(part.samples.prompt_ids).values()
    shared = sum(-(-count // part.packing.per_row) for count in copies)
    return PassSize(shared * prompt + rows * (new - 1), rows, rows * new)
