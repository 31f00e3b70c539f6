"""Comparisons from a run's samples.

Samples of one prompt are compared, within a step or across steps; of a held-out prompt, the first and last completions.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, prompt_text
from vigneron.data.sources import read_rows
from vigneron.errors import UserError
from vigneron.labels.items import Collected, in_format_of, in_random_order, make_comparisons
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind, Sample, SampleStore

MANY_SAMPLES, FEWEST_STEPS = 5_000, 50
"""Of a long run about this many samples are read, from evenly spaced steps including the first and the last."""
EVERY = 10**9


def comparisons_of_run(run: Path, *, kind: Literal["pairs", "best"], step: int | None, seed: int) -> Collected:
    folder = RunFolder.open(run).path
    with open_samples(folder) as store:
        groups = _groups(store, kind, step)
    prompts = prompts_of_run(folder)
    conversational = any(not isinstance(prompt, str) for prompt in prompts.values())
    collected = Collected()
    unknown = 0
    for (_, text), completions in groups.items():
        if not text.strip() or (conversational and text not in prompts):
            unknown += 1
            continue
        prompt = prompts.get(text, text)
        collected.items += make_comparisons(prompt, in_format_of(prompt, completions), kind, seed)
    if unknown:
        collected.notices.append(f"{unknown} prompts of '{run}' are empty or not in its data and are left out")
    if not collected.items:
        raise UserError(
            f"'{run}': no prompt has two different non-empty completions: train with `group_size` above 1, or use "
            "`--sample RUN --prompts FILE` to sample new ones"
        )
    collected.items = in_random_order(collected.items, seed)
    return collected


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


def _groups(store: SampleStore, kind: str, step: int | None) -> dict[tuple[Any, str], list[str]]:
    """Completions by prompt, and by step for `best`, which compares samples of one step."""
    check_step(store, step)
    groups: defaultdict[tuple[Any, str], list[str]] = defaultdict(list)
    for sample in samples_of_steps(store, "train", step):
        groups[sample.step if kind == "best" else "train", sample.prompt].append(sample.completion)
    if kind == "pairs":
        evaluated = store.steps("eval")
        for number in [step] if step is not None else dict.fromkeys((*evaluated[:1], *evaluated[-1:])):
            for sample in store.page(step=number, kind="eval", limit=EVERY):
                groups["eval", sample.prompt].append(sample.completion)
    return groups


def prompts_of_run(folder: Path) -> dict[str, Any]:
    """Prompts by their text, as in the run's data: samples store conversations as text."""
    files = [folder / "data" / f"{part}.jsonl" for part in ("train", "held_out")]
    rows: Iterable[Row] = (row for file in files if file.is_file() for row in read_rows(file))
    if any((folder / "data").glob("*.source.json")):
        run = RunFolder(folder)
        data = run.data(run.config(user_code=True))
        rows = chain(data.train, data.held_out)
    prompts = [row.get("prompt") for row in rows]
    return {prompt_text(prompt): prompt for prompt in prompts if isinstance(prompt, str) or is_conversation(prompt)}
