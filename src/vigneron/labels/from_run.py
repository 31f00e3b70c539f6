"""Completions to compare, from a run's samples.

Samples of one prompt meet, of the same step or of different ones; a held-out prompt's first completion meets its last.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from vigneron.data.dataset import read_rows
from vigneron.data.formats import is_conversation
from vigneron.data.texts import prompt_text
from vigneron.errors import UserError
from vigneron.labels.items import Found, compared, in_order
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind, Sample, SampleStore

MANY_SAMPLES, FEWEST_STEPS = 5_000, 50
"""Of a long run so many samples are read, of steps that are evenly spread, its first and last among them."""
EVERY = 10**9


def comparisons_of_run(run: Path, *, kind: Literal["pairs", "best"], step: int | None, seed: int) -> Found:
    folder = RunFolder.open(run).path
    with open_samples(folder) as store:
        groups = _groups(store, kind, step)
    told = _prompts(folder)
    conversational = any(not isinstance(prompt, str) for prompt in told.values())
    found = Found()
    unknown = 0
    for (_, text), completions in groups.items():
        if not text.strip() or (conversational and text not in told):
            unknown += 1
            continue
        prompt = told.get(text, text)
        given = completions if isinstance(prompt, str) else [[{"role": "assistant", "content": c}] for c in completions]
        found.items += compared(prompt, given, kind, seed)
    if unknown:
        found.notices.append(f"{unknown} prompts of '{run}' are empty or not in its data, and are left out")
    if not found.items:
        raise UserError(
            f"'{run}': no prompt has two different completions that say something: a method with groups makes several, "
            "and `--sample RUN --prompts FILE` draws them on the spot"
        )
    found.items = in_order(found.items, seed)
    return found


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
    kept = store.steps(kind)
    in_a_step = len(store.page(step=kept[0], kind=kind, limit=MANY_SAMPLES)) if kept else 1
    for number in spread(kept, max(FEWEST_STEPS, MANY_SAMPLES // in_a_step)):
        yield from store.page(step=number, kind=kind, limit=EVERY)


def spread(kept: list[int], most: int) -> list[int]:
    if len(kept) <= most:
        return kept
    return [kept[round(place * (len(kept) - 1) / (most - 1))] for place in range(most)]


def refuse_unknown_step(store: SampleStore, step: int | None) -> None:
    if step is None:
        return
    kept = sorted({*store.steps("train"), *store.steps("eval")})
    if step not in kept:
        shown = ", ".join(map(str, kept if len(kept) <= 20 else [*kept[:10], "…", *kept[-10:]]))
        raise UserError(f"--step: no samples of step {step} are kept (there are: {shown})")


def _groups(store: SampleStore, kind: str, step: int | None) -> dict[tuple[Any, str], list[str]]:
    """By prompt; the best of a group is looked for among the samples of one step."""
    refuse_unknown_step(store, step)
    groups: defaultdict[tuple[Any, str], list[str]] = defaultdict(list)
    for sample in samples_of_steps(store, "train", step):
        groups[sample.step if kind == "best" else "train", sample.prompt].append(sample.completion)
    if kind == "pairs":
        evaluated = store.steps("eval")
        for number in [step] if step is not None else dict.fromkeys((*evaluated[:1], *evaluated[-1:])):
            for sample in store.page(step=number, kind="eval", limit=EVERY):
                groups["eval", sample.prompt].append(sample.completion)
    return groups


def _prompts(folder: Path) -> dict[str, Any]:
    """As they are in the run's data: with the samples they are kept as texts, whatever they were."""
    files = [folder / "data" / f"{part}.jsonl" for part in ("train", "held_out")]
    prompts = [row.get("prompt") for file in files if file.is_file() for row in read_rows(file)]
    return {prompt_text(prompt): prompt for prompt in prompts if isinstance(prompt, str) or is_conversation(prompt)}
