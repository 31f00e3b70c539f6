"""Comparisons from a run's samples.

Samples of one prompt are compared, within a step or across steps; of a held-out prompt, the first and last completions.
Conversations with an environment are compared whole; those of a game where a role has read the same.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from vigneron.config import Config, GameConfig, ToolsEnvironmentConfig
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, prompt_of, prompt_text
from vigneron.data.sources import read_rows
from vigneron.environments.build import build_environments
from vigneron.errors import UserError
from vigneron.labels.items import Collected, Comparison, in_format_of, in_random_order, make_comparisons, text_of
from vigneron.policy.model_names import local_tokenizer
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind, Sample, SampleStore

MANY_SAMPLES, FEWEST_STEPS = 5_000, 50
"""Of a long run about this many samples are read, from evenly spaced steps including the first and the last."""
EVERY = 10**9


def comparisons_of_run(run: Path, *, kind: Literal["pairs", "best"], step: int | None, seed: int) -> Collected:
    folder = RunFolder.open(run).path
    with open_samples(folder) as store:
        groups, failed = _groups(store, kind, step)
    rows = _openings(groups.values()) or _rows_by_text(folder, groups.values())
    conversational = any(not isinstance(row["prompt"], str) for row in rows.values())
    collected = Collected()
    unknown = 0
    for (_, text), group in groups.items():
        if not text.strip() or (conversational and text not in rows):
            unknown += 1
            continue
        row = rows.get(text, {"prompt": text})
        completions = [_in_format(row["prompt"], _completion(sample)) for sample in group]
        items = make_comparisons(row["prompt"], completions, kind, seed, row.get("tools"))
        collected.items += _with_answers_and_rewards(items, completions, group)
    if unknown:
        collected.notices.append(f"{unknown} prompts of '{run}' are empty or not in its data and are left out")
    if failed:
        collected.notices.append(f"{failed} conversations of '{run}' are left out: their environment failed")
    if not collected.items:
        raise UserError(
            f"'{run}': no prompt has two different non-empty completions: train with `group_size` above 1, or use "
            "`--sample RUN --prompts FILE` to sample new ones"
        )
    collected.items = in_random_order(collected.items, seed)
    return collected


def _openings(groups: Iterable[Sequence[Sample]]) -> dict[str, Row]:
    """Of a game: the prompts by their text, which its samples have themselves."""
    every = ((sample.prompt, sample.extras.get("opening")) for group in groups for sample in group)
    return {text: {"prompt": messages} for text, messages in every if is_conversation(messages)}


def _rows_by_text(folder: Path, groups: Iterable[Sequence[Sample]]) -> dict[str, Row]:
    talked = any(isinstance(_completion(sample), list) for group in groups for sample in group)
    return _conversations_of_run(folder) if talked else rows_of_run(folder)


def _in_format(prompt: Any, completion: Any) -> Any:
    return completion if isinstance(completion, list) else in_format_of(prompt, [completion])[0]


def _with_answers_and_rewards(
    items: Sequence[Comparison], completions: Sequence[Any], group: Sequence[Sample]
) -> list[Comparison]:
    """Of equal completions the first one's reward, as in `distinct`."""
    answer = next((sample.answer for sample in group if sample.answer), None)
    rewards: dict[str, float | None] = {}
    for completion, sample in zip(completions, group, strict=True):
        rewards.setdefault(text_of(completion), sample.reward)
    return [
        replace(item, answer=answer, rewards=tuple(rewards[text_of(each)] for each in item.completions))
        for item in items
    ]


@contextmanager
def open_samples(folder: Path) -> Iterator[SampleStore]:
    if not (folder / "samples.sqlite").is_file():
        raise UserError(f"'{folder}' has no samples yet")
    try:
        store = SampleStore(folder, read_only=True)
        try:
            yield store
        finally:
            store.close()
    except (sqlite3.Error, ValueError) as error:
        raise UserError(f"cannot read '{folder / 'samples.sqlite'}': {error}") from error


def samples_of_steps(store: SampleStore, kind: Kind, step: int | None) -> Iterator[Sample]:
    if step is not None:
        yield from store.page(step=step, kind=kind, limit=EVERY)
        return
    steps = store.steps(kind)
    per_step = len(store.page(step=steps[0], kind=kind, limit=MANY_SAMPLES)) if steps else 1
    for number in spread(steps, max(FEWEST_STEPS, MANY_SAMPLES // per_step)):
        yield from store.page(step=number, kind=kind, limit=EVERY)


def spread(steps: list[int], most: int) -> list[int]:
    """At most `most` evenly spaced steps, the first and the last included."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def check_step(store: SampleStore, step: int | None) -> None:
    if step is None:
        return
    steps = sorted({*store.steps("train"), *store.steps("eval")})
    if step not in steps:
        shown = ", ".join(map(str, steps if len(steps) <= 20 else [*steps[:10], "…", *steps[-10:]]))
        raise UserError(f"--step: no stored samples of step {step}; available steps: {shown}")


def _groups(store: SampleStore, kind: str, step: int | None) -> tuple[dict[tuple[Any, str], list[Sample]], int]:
    """Samples by prompt, and by step for `best`, which compares samples of one step; and how many are left out
    because their environment failed."""
    check_step(store, step)
    groups: defaultdict[tuple[Any, str], list[Sample]] = defaultdict(list)
    failed = 0

    def add(key: Any, sample: Sample) -> None:
        nonlocal failed
        if sample.extras.get("environment_error") is not None:
            failed += 1
        else:
            groups[key, sample.prompt].append(sample)

    for sample in samples_of_steps(store, "train", step):
        add(sample.step if kind == "best" else "train", sample)
    if kind == "pairs":
        evaluated = store.steps("eval")
        for number in [step] if step is not None else dict.fromkeys((*evaluated[:1], *evaluated[-1:])):
            for sample in store.page(step=number, kind="eval", limit=EVERY):
                add("eval", sample)
    return groups, failed


def _completion(sample: Sample) -> Any:
    """The text, or the messages of a conversation."""
    messages = sample.extras.get("conversation")
    return messages if messages and is_conversation(messages) else sample.completion


def rows_of_run(folder: Path) -> dict[str, Row]:
    """Prompts and tools by the prompt's text, as in the run's data: samples store conversations as text."""
    files = [folder / "data" / f"{part}.jsonl" for part in ("train", "held_out")]
    rows: Iterable[Row] = (row for file in files if file.is_file() for row in read_rows(file))
    if any((folder / "data").glob("*.source.json")):
        run = RunFolder(folder)
        data = run.data(run.config(user_code=True))
        rows = chain(data.train, data.held_out)
    known = (row for row in rows if isinstance(row.get("prompt"), str) or is_conversation(row.get("prompt")))
    return {prompt_text(row["prompt"]): prompt_of(row) for row in known}


def _conversations_of_run(folder: Path) -> dict[str, Row]:
    """The same of a run with an environment, as it prepares its rows."""
    config = RunFolder(folder).config(user_code=True)
    if isinstance(config.environment, GameConfig):
        raise UserError(f"'{folder}': its samples were stored without what the roles of the game read: train it again")
    environments = build_environments(config.environment, _tokenizer(folder, config))
    rows = rows_of_run(folder).values()
    prepared = rows if environments is None else map(environments.prepared, rows)
    return {prompt_text(row["prompt"]): prompt_of(row) for row in prepared}


def _tokenizer(folder: Path, config: Config) -> Any:
    """Of a checkpoint, which has the run's chat template, or else of its model. None where neither is here, and none is
    needed."""
    saved = [str(file.parent) for file in sorted(RunFolder(folder).checkpoints.glob("step-*/tokenizer_config.json"))]
    for name in (*saved[-1:], config.model.name):
        tokenizer = local_tokenizer(name, trust_remote_code=config.model.trust_remote_code)
        if tokenizer is not None:
            return tokenizer
    if isinstance(config.environment, ToolsEnvironmentConfig):
        raise UserError(
            f"'{folder}' has no checkpoint, and its model '{config.model.name}' is not on this machine: the tokenizer "
            "is needed for the tools in the prompts"
        )
    return None
