"""How long a run's sequences are, and whether they fit, before it begins."""

from collections.abc import Iterator, Sequence
from typing import Any

from vigneron.config import Config
from vigneron.data.prompts import Row, prompts_token_ids
from vigneron.policy.model import Policy
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.engine.sample import check_lengths
from vigneron.rollout.pairs import sequences_of
from vigneron.rubric.prompts import generation_prompt
from vigneron.rubric.rows import category_of
from vigneron.run_data.load import Data


def lengths(config: Config, policy: Policy, data: Data, reward: Any = None) -> tuple[int, str | None]:
    """Tokens of the longest sequence; and what is to be said of demonstrations that were cut.

    A prompt that does not fit into the model is found here, not after hours.
    """
    longest, cut = 1, None
    for rows, of in ((data.train, "the training data"), (data.held_out, "the held-out part")):
        if not rows:
            continue
        if config.method.reads == "pairs":
            ids = sequences_of(policy, rows, of, joined=config.method.joins_pairs)
        elif config.method.reads == "demonstrations" and rows is data.train:
            shown = demonstrations(policy, rows, of=of)
            ids = [each.ids for each in shown]
            numbers = [number for number, each in enumerate(shown, start=1) if each.cut]
            if numbers:
                cut = (
                    f"{len(numbers)} of {len(rows)} demonstrations are longer than the model's context of "
                    f"{policy.context_length} tokens and are cut there, the first in row {numbers[0]} of {of}"
                )
        else:
            for prompts, what in asked_of(config, rows, reward):
                ids = prompts_token_ids(policy.tokenizer, prompts, of + what)
                check_lengths(policy, ids, config.max_new_tokens, of + what)
                longest = max(longest, config.max_new_tokens + max(map(len, ids)))
            if config.method.shows_answers and rows is data.train:
                shown = demonstrations(policy, [row for row in rows if row.get("answer")], of=of)
                longest = max(longest, *(len(each.ids) for each in shown))
        longest = max(longest, *map(len, ids))
    return longest, cut


def asked_of(config: Config, rows: Sequence[Row], reward: Any) -> Iterator[tuple[list[Any], str]]:
    """The prompts that completions are drawn under: bare, and as a rubric's categories say."""
    yield [row["prompt"] for row in rows], ""
    if config.method.needs_rubric:
        rubric = reward.live_rubric.rubric
        of = [rubric.categories[category_of(rubric, row, n, "the data")] for n, row in enumerate(rows, start=1)]
        made = [generation_prompt(category, row["prompt"]) for category, row in zip(of, rows, strict=True)]
        yield made, ", with its category's `generate` prompt"
