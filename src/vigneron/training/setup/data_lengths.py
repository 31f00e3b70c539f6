"""The longest sequence of a run's data, and prompts that do not fit into the context."""

from collections.abc import Iterator, Sequence
from typing import Any

from vigneron.config import Config
from vigneron.data.prompts import Row, prompts_token_ids
from vigneron.data.rows import Subset, longest_of
from vigneron.environments.build import build_environments
from vigneron.policy.model import Policy
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.engine.sample import check_lengths
from vigneron.rollout.guided import guided_prompts
from vigneron.rollout.pairs import sequences_of
from vigneron.rollout.recorded import recorded_texts
from vigneron.rubric.prompts import criteria_prompt, generation_prompt
from vigneron.rubric.rows import category_of
from vigneron.run_data.load import Data
from vigneron.run_data.readers import measured_columns


def check_data_lengths(config: Config, policy: Policy, data: Data, reward: Any = None) -> tuple[int, str | None]:
    """The longest sequence in tokens, and a notice if demonstrations are truncated.

    Raises for a prompt that does not fit into the context, before training starts. Of many rows the longest are
    tokenized: the others are checked in the step that draws them.
    """
    longest, truncation = 1, None
    environments = build_environments(config.environment, policy.tokenizer)
    for part, of in (("train", "the training data"), ("held_out", "the held-out part")):
        whole: Sequence[Row] = getattr(data, part)
        if not whole:
            continue
        indices = longest_of(whole, measured_columns(config, part))
        rows = whole if len(indices) == len(whole) else Subset(whole, indices)
        if config.method.reads == "pairs":
            ids = sequences_of(policy, rows, of, joined=config.method.joins_pairs)
        elif config.method.reads in ("demonstrations", "recorded") and part == "train":
            texts = (recorded_texts if config.method.reads == "recorded" else demonstrations)(policy, rows, of=of)
            ids = [text.ids for text in texts]
            numbers = [number for number, text in zip(indices + 1, texts, strict=True) if text.cut]
            if numbers:
                named = "demonstrations" if config.method.reads == "demonstrations" else "recorded samples"
                least = "at least " if len(rows) < len(whole) else ""
                truncation = (
                    f"{least}{len(numbers)} of {len(whole)} {named} are longer than the model's context of "
                    f"{policy.context_length} tokens and are truncated, the first in row {numbers[0]} of {of}"
                )
        else:
            if environments is not None:
                rows = [environments.prepared(row) for row in rows]
            template = config.sampling.prompt if part == "train" else None  # evaluation uses the row's own prompt
            for prompts, what in sampling_prompts(config, template, rows, reward):
                ids = prompts_token_ids(policy.tokenizer, prompts, of + what, rows)
                check_lengths(policy, ids, config.max_new_tokens, of + what, rows)
                longest = max(longest, config.completion_tokens + max(map(len, ids)))
            if config.method.shows_answers and part == "train":
                texts = demonstrations(policy, [row for row in rows if row.get("answer")], of=of)
                longest = max(longest, *(len(text.ids) for text in texts))
        longest = max(longest, *map(len, ids))
    return longest, truncation


def sampling_prompts(
    config: Config, template: str | None, rows: Sequence[Row], reward: Any
) -> Iterator[tuple[list[Any], str]]:
    """The prompts that are sampled from: the rows' own, and with the template or a rubric's generation prompts."""
    yield [row["prompt"] for row in rows], ""
    if template is not None:
        yield guided_prompts(rows, template, "the data"), ", with `sampling.prompt`"
    if config.method.needs_rubric:
        rubric = reward.live_rubric.rubric
        categories = [rubric.categories[category_of(rubric, row, n, "the data")] for n, row in enumerate(rows, start=1)]
        prompts = [generation_prompt(category, row["prompt"]) for category, row in zip(categories, rows, strict=True)]
        yield prompts, ", with its category's `generate` prompt"
        if config.method.shows_items:
            prompts = [criteria_prompt(one.items, row["prompt"]) for one, row in zip(categories, rows, strict=True)]
            yield prompts, ", with its rubric's items"
