"""`vigneron demo`: the same model, prompts and seed with three rewards, evaluated on held-out sentences.

In PGSRM the child is the model that is trained, the parent the model whose answers it learns from.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vigneron.api import train
from vigneron.errors import UserError, visible
from vigneron.recipe import load_config
from vigneron.report.html import write_report
from vigneron.report.outcome_part import before_and_after
from vigneron.report.tables import truncate
from vigneron.report.terminal import TerminalView, say
from vigneron.run_store.folder import RunFolder

ARMS: dict[str, tuple[str, ...]] = {
    "PGSRM": ("recipe=demo-pgsrm",),
    "exact check": (
        "recipe=demo-exact",
        "reward={kind: python, function: 'vigneron.rewards.checkers:exact_reward'}",
    ),
    "inclusion check": ("recipe=demo-inclusion", "reward=binary"),
}
"""What each run changes in the recipe `demo`. Accuracy is the same in all: whether the answer has the copy in it."""
REWARDS = {
    "PGSRM": "the similarity to a parent's answer, by embeddings, which tells the nearer of two wrong answers",
    "exact check": "1 if the answer is the copy and nothing else, else 0",
    "inclusion check": "1 if the answer has the copy in it, else 0",
}
TEXTS_SHOWN = 4
LATER = (
    "A check that is hit now and then learns later: `vigneron train demo reward=binary steps=30` shows it for the "
    "inclusion check."
)
CLEAR = 0.1
"""A difference of held-out scores that is called one."""


def run_demo(console: Console, overrides: Sequence[str], runs: Path | None) -> None:
    if any(override.startswith(("reward", "data.checker")) for override in overrides):
        raise UserError("the demo compares three rewards: change other keys, or use `vigneron train demo reward=…`")
    arms = {name: load_config("demo", [*overrides, *changes]) for name, changes in ARMS.items()}
    model = arms["PGSRM"].model.name
    intro = f"{model} learns to copy a sentence, from the same weights with three rewards:"
    say(console, intro)
    for name, pays in REWARDS.items():
        say(console, f"  {name}: {pays}")
    folders = {}
    for name, config in arms.items():
        say(console, f"\n{name}")
        with TerminalView(console, config.recipe) as view:
            folders[name] = RunFolder(train(config, runs=runs, view=view).folder)
    found = {name: summary(folder.metrics()) for name, folder in folders.items()}
    console.print(_scores_table(found))
    if texts := _texts_table(folders):
        console.print(texts)
    say(console, verdict(found))
    first = folders["PGSRM"].path
    rewards = [f"{config.recipe} – {REWARDS[name]}." for name, config in arms.items()]
    lead = [intro, *rewards, "Accuracy is the share of answers that have the copy in them.", verdict(found)]
    page = write_report([folder.path for folder in folders.values()], title="Demo: three rewards", lead=lead)
    say(console, f"report  {page}")
    say(console, f"chat    vigneron chat {first}")


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Held-out scores before and after, and how many steps had two samples of a prompt with different rewards."""
    evals = [r for r in records if r.get("eval/answer_included") is not None]
    steps = [r for r in records if r.get("reward") is not None]
    last = evals[-1] if len(evals) > 1 else {}
    return {
        "exact_before": evals[0]["eval/exact_match"] if evals else None,
        "exact": last.get("eval/exact_match"),
        "included_before": evals[0]["eval/answer_included"] if evals else None,
        "included": last.get("eval/answer_included"),
        "steps": len(steps),
        "taught": sum(step.get("frac_reward_zero_std", 0.0) < 1.0 for step in steps),
    }


def verdict(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What was seen, whichever reward is better: by how many answers have the copy in them."""
    if any(one["included"] is None for one in found.values()):
        return "nothing to compare: evaluation is off (eval_every=0)"
    silent = [name for name, one in found.items() if not one["taught"]]
    best = max(one["included"] for one in found.values())
    ahead = [name for name, one in found.items() if best - one["included"] < CLEAR]
    who, it = " and the ".join(silent), "it" if len(silent) == 1 else "they"
    lines = [f"The {who} never told two samples of a prompt apart, so {it} taught nothing."] if silent else []
    if len(ahead) == len(found):
        return " ".join([*lines, "All three end about equal."])
    later = [] if "inclusion check" in ahead else [LATER]
    return " ".join([*lines, f"Ahead on held-out sentences: {' and '.join(ahead)}.", *later])


def _scores_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="held-out sentences, greedy decoding", title_justify="left")
    for heading in ("reward", "copy included", "exact copy", "steps with a signal"):
        table.add_column(heading)
    for name, one in found.items():
        scores = [_change(one[f"{score}_before"], one[score]) for score in ("included", "exact")]
        table.add_row(name, *scores, f"{one['taught']} of {one['steps']}")
    return table


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None else f"{before:.2f} → {after:.2f}"


def _texts_table(folders: Mapping[str, RunFolder]) -> Table | None:
    """The first held-out sentences: what the untrained model says, and what each of the trained ones does."""
    pairs = {name: before_and_after(folder.path)[:TEXTS_SHOWN] for name, folder in folders.items()}
    if not all(pairs.values()):
        return None
    table = Table(title="the same sentences before and after", title_justify="left", show_lines=True)
    for heading in ("sentence", "before", *pairs):
        table.add_column(heading, overflow="fold", ratio=1)
    for row, (before, _) in enumerate(next(iter(pairs.values()))):
        texts = [before.answer or before.prompt, before.completion, *(own[row][1].completion for own in pairs.values())]
        table.add_row(*(Text(truncate(visible(text.strip()), 120)) for text in texts))
    return table
